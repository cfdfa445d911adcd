//! The flat description of a virtual node: what the runtime must know, made by
//! the driver side from a topology, a GPU model and the symbols of a library.
//! One text line for each fact, so that it fits into a message or a file and
//! needs no parser beyond this one.

use std::fmt;

const HEADER: &str = "nccldiag-virtual-node 1";

/// More lines than any library has functions (2.32.3 for CUDA 13: 711).
const MOST_LINES: usize = 20_000;
/// NCCL itself ends at 64 devices in one process.
pub const MOST_GPUS: usize = 64;

/// The figures of a GPU model that NCCL can ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Compute capability: 9 in 9.0.
    pub major: i32,
    /// Compute capability: 0 in 9.0.
    pub minor: i32,
    /// Streaming multiprocessors.
    pub processors: i32,
    /// Shared memory that one block may ask for, in bytes.
    pub shared_block: i32,
    /// Shared memory of one multiprocessor, in bytes.
    pub shared_processor: i32,
    /// Boost clock in kHz.
    pub clock_khz: i32,
    /// Memory clock in kHz.
    pub memory_khz: i32,
    /// Memory bus in bits.
    pub bus_bits: i32,
    /// Second level cache in bytes.
    pub cache: i32,
    /// Device memory in bytes.
    pub memory: u64,
    /// Whether the driver lets two such GPUs reach each other's memory.
    pub peer: bool,
    /// Whether the node can do multicast (NVLink SHARP): a switch and a GPU
    /// that knows it.
    pub multicast: bool,
    /// PCI device and vendor id, such as 0x233010de.
    pub pci_id: u32,
}

/// One GPU of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// PCI address such as `0000:1b:00.0`, in lower case.
    pub bus: String,
    /// Active NVLinks.
    pub links: u32,
}

/// A function of the library, by its link-time address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Link-time address: an offset from the load base.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// The symbol.
    pub name: String,
}

/// Everything that the runtime is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// CUDA runtime that is linked into the library, such as 12090.
    pub runtime: i32,
    /// CUDA driver that the node claims to have, such as 12090.
    pub driver: i32,
    /// The model's name.
    pub model: String,
    /// The model's figures.
    pub figures: Figures,
    /// The GPUs, by device number.
    pub gpus: Vec<Gpu>,
    /// Entry points of the CUDA runtime in the library.
    pub entries: Vec<Function>,
    /// Kernels of NCCL, so that launches can be named.
    pub kernels: Vec<Function>,
}

/// Why a text is no description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadDescription {
    /// The line, from 1; 0 for the text as a whole.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for BadDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the virtual node's description, line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for BadDescription {}

impl Description {
    /// The text that [`parse`](Self::parse) reads back.
    pub fn encode(&self) -> String {
        let f = &self.figures;
        let mut text = format!("{HEADER}\nruntime {}\ndriver {}\n", self.runtime, self.driver);
        text += &format!("model {}\nmajor {}\nminor {}\n", self.model, f.major, f.minor);
        text += &format!("processors {}\nshared_block {}\n", f.processors, f.shared_block);
        text += &format!("shared_processor {}\nclock_khz {}\n", f.shared_processor, f.clock_khz);
        text +=
            &format!("memory_khz {}\nbus_bits {}\ncache {}\n", f.memory_khz, f.bus_bits, f.cache);
        text += &format!("memory {}\npeer {}\n", f.memory, i32::from(f.peer));
        text += &format!("multicast {}\npci_id {}\n", i32::from(f.multicast), f.pci_id);
        for gpu in &self.gpus {
            text += &format!("gpu {} {}\n", gpu.links, gpu.bus);
        }
        for (word, list) in [("entry", &self.entries), ("kernel", &self.kernels)] {
            for function in list {
                text +=
                    &format!("{word} {} {} {}\n", function.offset, function.size, function.name);
            }
        }
        text
    }

    /// Reads a description.
    ///
    /// # Errors
    /// [`BadDescription`] with the line.
    pub fn parse(text: &str) -> Result<Self, BadDescription> {
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(HEADER) {
            return Err(BadDescription { line: 1, why: "it is of another version of this tool" });
        }
        let mut read = Self::default();
        for (at, line) in lines {
            let bad = |why| BadDescription { line: at + 1, why };
            if at > MOST_LINES {
                return Err(bad("there are too many lines"));
            }
            let (word, rest) = line.split_once(' ').ok_or_else(|| bad("it has no value"))?;
            read.line(word, rest).map_err(bad)?;
        }
        let bad = |why| Err(BadDescription { line: 0, why });
        match () {
            () if read.gpus.is_empty() => bad("it has no GPU"),
            () if read.entries.is_empty() => bad("it has no entry points"),
            () => Ok(read),
        }
    }

    fn line(&mut self, word: &str, rest: &str) -> Result<(), &'static str> {
        let f = &mut self.figures;
        match word {
            "model" => rest.clone_into(&mut self.model),
            "runtime" => self.runtime = number(rest)?,
            "driver" => self.driver = number(rest)?,
            "major" => f.major = number(rest)?,
            "minor" => f.minor = number(rest)?,
            "processors" => f.processors = number(rest)?,
            "shared_block" => f.shared_block = number(rest)?,
            "shared_processor" => f.shared_processor = number(rest)?,
            "clock_khz" => f.clock_khz = number(rest)?,
            "memory_khz" => f.memory_khz = number(rest)?,
            "bus_bits" => f.bus_bits = number(rest)?,
            "cache" => f.cache = number(rest)?,
            "memory" => f.memory = number(rest)?,
            "pci_id" => f.pci_id = number(rest)?,
            "peer" => f.peer = number::<i32>(rest)? != 0,
            "multicast" => f.multicast = number::<i32>(rest)? != 0,
            "gpu" if self.gpus.len() < MOST_GPUS => self.gpus.push(gpu(rest)?),
            "gpu" => return Err("there are too many GPUs"),
            "entry" => self.entries.push(function(rest)?),
            "kernel" => self.kernels.push(function(rest)?),
            _ => return Err("nothing is known by this name"),
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "its value is not a number in range")
}

fn gpu(rest: &str) -> Result<Gpu, &'static str> {
    let (links, bus) = rest.split_once(' ').ok_or("a GPU needs links and a bus id")?;
    let bus = bus.to_ascii_lowercase();
    match bus_numbers(&bus) {
        Some(_) => Ok(Gpu { bus, links: number(links)? }),
        None => Err("its bus id is not like 0000:1b:00.0"),
    }
}

fn function(rest: &str) -> Result<Function, &'static str> {
    let mut words = rest.splitn(3, ' ');
    match (words.next(), words.next(), words.next()) {
        (Some(offset), Some(size), Some(name)) => {
            Ok(Function { offset: number(offset)?, size: number(size)?, name: name.to_owned() })
        }
        _ => Err("a function needs offset, size and name"),
    }
}

/// Domain, bus, device and function of a PCI address.
pub fn bus_numbers(text: &str) -> Option<[u32; 4]> {
    let (front, function) = text.rsplit_once('.')?;
    let mut parts = front.split(':');
    let hex = |text: Option<&str>| u32::from_str_radix(text?, 16).ok();
    let numbers =
        [hex(parts.next())?, hex(parts.next())?, hex(parts.next())?, hex(Some(function))?];
    let fits = numbers[1] < 256 && numbers[2] < 32 && numbers[3] < 8;
    (fits && parts.next().is_none()).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Description {
        let function = |name: &str| Function { offset: 4096, size: 5, name: name.to_owned() };
        Description {
            runtime: 12090,
            driver: 13000,
            model: "NVIDIA H100 80GB HBM3".into(),
            figures: Figures { major: 9, memory: 85_028_896_768, peer: true, ..Figures::default() },
            gpus: vec![Gpu { bus: "0000:1b:00.0".into(), links: 18 }],
            entries: vec![function("cudaMalloc")],
            kernels: vec![function("_Z3foo v")],
        }
    }

    #[test]
    fn a_description_survives_its_text() {
        let text = sample().encode();
        assert_eq!(Description::parse(&text), Ok(sample()));
    }

    #[test]
    fn bad_lines_are_named() {
        let line = |extra: &str| {
            let error = Description::parse(&(sample().encode() + extra)).expect_err("bad line");
            assert!(error.line > 10, "{error}");
        };
        line("gpu 18 1b:00\n");
        line("gpu x 0000:1b:00.0\n");
        line("entry 1 2\n");
        line("driver 99999999999\n");
        line("what else\n");
        line("lonely\n");
        assert!(Description::parse("").is_err());
        assert!(Description::parse(HEADER).is_err());
        let many = sample().encode() + &"gpu 0 0000:00:00.0\n".repeat(MOST_GPUS);
        assert!(Description::parse(&many).is_err());
    }

    #[test]
    fn bus_ids_are_checked() {
        assert_eq!(bus_numbers("0001:1b:00.0"), Some([1, 27, 0, 0]));
        for bad in
            ["", "1b:00.0", "0000:1bb:00.0", "0000:00:20.0", "0:0:0.8", "0:0:0:0.0", "x:0:0.0"]
        {
            assert_eq!(bus_numbers(bad), None, "{bad}");
        }
    }
}
