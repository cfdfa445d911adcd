//! Reads what `nvidia-smi` says about each GPU: the sections of `nvidia-smi -q`,
//! else the table of `nvidia-smi`, else the list of `nvidia-smi -L`.

use super::super::runtime::description::bus_numbers;

/// One GPU, as far as the text knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// PCI address, as NCCL writes it: `0000:1b:00.0`.
    pub bus: Option<String>,
    /// Product name; older tables cut it and add `...`.
    pub name: Option<String>,
    /// PCI device id and vendor (10de), as one number: `0x233010de`.
    pub id: Option<u32>,
    /// The same for the subsystem.
    pub subsystem: Option<u32>,
    /// PCI base class and subclass.
    pub class: (Option<u32>, Option<u32>),
    /// PCI Express generation that card and slot can do.
    pub generation: Option<u32>,
    /// Lanes that card and slot can do, and those in use.
    pub width: Option<u32>,
    pub width_now: Option<u32>,
}

/// Finds the GPUs in a text, in `nvidia-smi`'s order; empty when it has none.
///
/// # Errors
/// What does not fit, as a sentence.
pub fn find(text: &str) -> Result<Vec<Card>, String> {
    let all = [sections(text), table(text), list(text)];
    let mut counts: Vec<usize> = all.iter().map(Vec::len).filter(|&count| count > 0).collect();
    counts.dedup();
    if let [first, second, ..] = counts[..] {
        return Err(format!(
            "one output of nvidia-smi has {first} GPUs, another {second}: they are of different \
             machines"
        ));
    }
    let cards = all.into_iter().find(|cards| !cards.is_empty()).unwrap_or_default();
    for (at, card) in cards.iter().enumerate() {
        if card.bus.is_some() && cards[..at].iter().any(|other| other.bus == card.bus) {
            let bus = card.bus.as_deref().unwrap_or_default();
            return Err(format!("nvidia-smi has a GPU {bus} twice"));
        }
    }
    Ok(cards)
}

/// `nvidia-smi -q`: a line with the address, then indented names and values
/// under headings without a value.
fn sections(text: &str) -> Vec<Card> {
    let mut cards: Vec<Card> = Vec::new();
    let mut heading = "";
    for line in text.lines() {
        if let Some(bus) = line.strip_prefix("GPU ").and_then(address) {
            cards.push(Card { bus: Some(bus), ..Card::default() });
            continue;
        }
        // What is not indented is of another command.
        let inside = line.starts_with(' ');
        let Some(card) = cards.last_mut().filter(|_| inside) else { continue };
        match line.split_once(':') {
            None => heading = line.trim(),
            Some((name, value)) => card.set(heading, name.trim(), value.trim()),
        }
    }
    cards
}

impl Card {
    /// The first value of a name counts.
    fn set(&mut self, heading: &str, name: &str, value: &str) {
        let hex = || u32::from_str_radix(value.strip_prefix("0x")?, 16).ok();
        let lanes = || value.strip_suffix('x')?.parse().ok();
        match (heading, name) {
            (_, "Product Name") if self.name.is_none() => self.name = Some(value.to_owned()),
            (_, "Device Id") if self.id.is_none() => self.id = hex(),
            (_, "Sub System Id") if self.subsystem.is_none() => self.subsystem = hex(),
            (_, "Base Classcode") if self.class.0.is_none() => self.class.0 = hex(),
            (_, "Sub Classcode") if self.class.1.is_none() => self.class.1 = hex(),
            ("PCIe Generation", "Max") if self.generation.is_none() => {
                self.generation = value.parse().ok();
            }
            ("Link Width", "Max") if self.width.is_none() => self.width = lanes(),
            ("Link Width", "Current") if self.width_now.is_none() => self.width_now = lanes(),
            _ => {}
        }
    }

    /// The PCI device id without the vendor.
    pub fn device(&self) -> Option<u16> {
        self.id.and_then(|id| u16::try_from(id >> 16).ok())
    }
}

/// The table: `|   0  NVIDIA H100 80GB HBM3    On  | 00000000:19:00.0 Off | ...`.
fn table(text: &str) -> Vec<Card> {
    let row = |line: &str| {
        let mut cells = line.trim().strip_prefix('|')?.split('|');
        let (first, second) = (cells.next()?, cells.next()?);
        let bus = address(second.split_whitespace().next()?)?;
        let (number, rest) = first.trim().split_once(' ')?;
        number.parse::<u32>().ok()?;
        let rest = rest.trim();
        // The last word is the persistence mode.
        let name = rest.rsplit_once(' ').filter(|(_, last)| ["On", "Off"].contains(last));
        let name = name.map_or(rest, |(name, _)| name).trim();
        Some(Card { bus: Some(bus), name: Some(name.to_owned()), ..Card::default() })
    };
    text.lines().filter_map(row).collect()
}

/// The list: `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)`.
fn list(text: &str) -> Vec<Card> {
    let row = |line: &str| {
        let (number, rest) = line.trim().strip_prefix("GPU ")?.split_once(':')?;
        number.parse::<u32>().ok()?;
        let (name, _) = rest.split_once("(UUID:")?;
        Some(Card { name: Some(name.trim().to_owned()), ..Card::default() })
    };
    text.lines().filter_map(row).collect()
}

/// `00000000:1B:00.0` as NCCL writes it; `None` for anything else.
fn address(text: &str) -> Option<String> {
    let [domain, bus, device, function] = bus_numbers(text.trim())?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_and_a_list_are_read() {
        let table = "\
| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   34C    P0             70W /  700W |       1MiB /  81559MiB |      0%      Default |
|   1  NVIDIA A100-SXM...  Off  | 00000000:3B:00.0 Off |                    0 |
|    0   N/A  N/A      1234      C   python                                    400MiB |
";
        let cards = find(table).expect("valid");
        assert_eq!(cards.len(), 2);
        assert_eq!(cards[0].name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
        assert_eq!(cards[0].bus.as_deref(), Some("0000:19:00.0"));
        assert_eq!(cards[1].name.as_deref(), Some("NVIDIA A100-SXM..."));
        assert_eq!(cards[1].bus.as_deref(), Some("0000:3b:00.0"));
        let list = "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)\n";
        let cards = find(list).expect("valid");
        assert_eq!(cards[0].name.as_deref(), Some("NVIDIA GeForce RTX 4090"));
        assert!(find(&(table.to_owned() + list)).expect_err("2 and 1").contains("2 GPUs"));
        assert_eq!(find("hello\n").expect("valid"), []);
    }

    #[test]
    fn one_address_is_one_gpu() {
        let twice = "GPU 00000000:19:00.0\nGPU 00000000:19:00.0\n";
        assert!(find(twice).expect_err("twice").contains("0000:19:00.0 twice"));
    }
}
