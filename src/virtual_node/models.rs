//! GPU models as data: the figures that NCCL asks a GPU for, with their source.
//! Nothing here was measured; a user's own file has the same form.

use super::runtime::Figures;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// One GPU model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// How a user names it, such as `h100`.
    pub key: String,
    /// How the driver names it.
    pub name: String,
    /// PCI device ids (of vendor 0x10de) of this model.
    pub devices: Vec<u16>,
    /// NVLinks on the board, for topologies that do not list them. Such boards
    /// are taken to be connected by NVSwitches.
    pub links: u32,
    /// The most NVLinks that a bridge between two such cards has.
    pub bridge: u32,
    /// PCI Express generation of the card.
    pub pcie: u32,
    /// What NCCL can ask for. `multicast` says that the GPU could.
    pub figures: Figures,
    /// Where the figures come from.
    pub source: String,
}

/// Why there is no such model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Neither a model nor a file.
    #[error("no GPU model or file {name:?}; models: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The file cannot be read.
    #[error("read the GPU model {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// A line is wrong.
    #[error("GPU model {}, line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

/// The parts of a figure set that differ between the known models.
struct Row {
    key: &'static str,
    name: &'static str,
    devices: &'static [u16],
    capability: (i32, i32),
    processors: i32,
    /// KiB for one block and for one multiprocessor.
    shared: (i32, i32),
    /// MHz: boost, memory.
    clocks: (i32, i32),
    bus_bits: i32,
    /// MiB.
    cache: i32,
    /// MiB.
    memory: u64,
    links: u32,
    /// NVLinks of a bridge; PCIe generation.
    bridge: u32,
    pcie: u32,
    peer: bool,
    multicast: bool,
    source: &'static str,
}

/// Shared memory and capability are from the CUDA C++ Programming Guide,
/// "Technical Specifications per Compute Capability"; the rest from the sheets
/// that each row names. Device ids are those of pci.ids.
const ROWS: [Row; 8] = [
    Row {
        key: "h100",
        name: "NVIDIA H100 80GB HBM3",
        devices: &[0x2330],
        capability: (9, 0),
        processors: 132,
        shared: (227, 228),
        clocks: (1980, 2619),
        bus_bits: 5120,
        cache: 50,
        memory: 81_089,
        links: 18,
        bridge: 0,
        pcie: 5,
        peer: true,
        multicast: true,
        source: "NVIDIA H100 Tensor Core GPU data sheet and architecture white paper (SXM5)",
    },
    Row {
        key: "h200",
        name: "NVIDIA H200",
        devices: &[0x2335],
        capability: (9, 0),
        processors: 132,
        shared: (227, 228),
        clocks: (1980, 3201),
        bus_bits: 6144,
        cache: 60,
        memory: 143_156,
        links: 18,
        bridge: 0,
        pcie: 5,
        peer: true,
        multicast: true,
        source: "NVIDIA H200 Tensor Core GPU data sheet (SXM)",
    },
    Row {
        key: "b200",
        name: "NVIDIA B200",
        devices: &[0x2901],
        capability: (10, 0),
        processors: 148,
        shared: (227, 228),
        clocks: (1965, 3996),
        bus_bits: 8192,
        cache: 126,
        memory: 182_629,
        links: 18,
        bridge: 0,
        pcie: 5,
        peer: true,
        multicast: true,
        source: "NVIDIA HGX B200 data sheet",
    },
    Row {
        key: "a100",
        name: "NVIDIA A100-SXM4-80GB",
        devices: &[0x20b2, 0x20b0, 0x20b1, 0x20b3],
        capability: (8, 0),
        processors: 108,
        shared: (163, 164),
        clocks: (1410, 1593),
        bus_bits: 5120,
        cache: 40,
        memory: 81_251,
        links: 12,
        bridge: 0,
        pcie: 4,
        peer: true,
        multicast: false,
        source: "NVIDIA A100 Tensor Core GPU data sheet and architecture white paper (SXM4)",
    },
    Row {
        key: "a100-pcie",
        name: "NVIDIA A100 80GB PCIe",
        devices: &[0x20b5, 0x20f1],
        capability: (8, 0),
        processors: 108,
        shared: (163, 164),
        clocks: (1410, 1512),
        bus_bits: 5120,
        cache: 40,
        memory: 81_251,
        links: 0,
        bridge: 12,
        pcie: 4,
        peer: true,
        multicast: false,
        source: "NVIDIA A100 80GB PCIe product brief",
    },
    Row {
        key: "rtxpro6000",
        name: "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        devices: &[0x2bb5, 0x2bb1, 0x2bb4],
        capability: (12, 0),
        processors: 188,
        shared: (99, 100),
        clocks: (2430, 14001),
        bus_bits: 512,
        cache: 128,
        memory: 97_251,
        links: 0,
        bridge: 0,
        pcie: 5,
        peer: true,
        multicast: false,
        source: "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet",
    },
    Row {
        key: "rtx4090",
        name: "NVIDIA GeForce RTX 4090",
        devices: &[0x2684],
        capability: (8, 9),
        processors: 128,
        shared: (99, 100),
        clocks: (2520, 10501),
        bus_bits: 384,
        cache: 72,
        memory: 24_217,
        links: 0,
        bridge: 0,
        pcie: 4,
        // The driver offers no peer access between GeForce cards of this
        // generation.
        peer: false,
        multicast: false,
        source: "NVIDIA Ada GPU architecture white paper (GeForce RTX 4090)",
    },
    Row {
        key: "rtx4090-p2p",
        name: "NVIDIA GeForce RTX 4090",
        devices: &[],
        capability: (8, 9),
        processors: 128,
        shared: (99, 100),
        clocks: (2520, 10501),
        bus_bits: 384,
        cache: 72,
        memory: 24_217,
        links: 0,
        bridge: 0,
        pcie: 4,
        peer: true,
        multicast: false,
        source: "as rtx4090, with a kernel module that allows peer access",
    },
];

impl From<&Row> for Model {
    fn from(row: &Row) -> Self {
        Self {
            key: row.key.into(),
            name: row.name.into(),
            devices: row.devices.to_vec(),
            links: row.links,
            bridge: row.bridge,
            pcie: row.pcie,
            figures: Figures {
                major: row.capability.0,
                minor: row.capability.1,
                processors: row.processors,
                shared_block: row.shared.0 << 10,
                shared_processor: row.shared.1 << 10,
                clock_khz: row.clocks.0 * 1000,
                memory_khz: row.clocks.1 * 1000,
                bus_bits: row.bus_bits,
                cache: row.cache << 20,
                memory: row.memory << 20,
                peer: row.peer,
                multicast: row.multicast,
                pci_id: row.devices.first().map_or(0, |&id| u32::from(id) << 16 | 0x10de),
            },
            source: row.source.into(),
        }
    }
}

impl Model {
    /// All known models.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(Self::from)
    }

    /// NCCL's number for the compute capability: 90 for 9.0.
    pub fn sm(&self) -> i32 {
        self.figures.major * 10 + self.figures.minor
    }

    /// The model of this name, or the one that a file describes.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn named(name: &str) -> Result<Self, ModelError> {
        let key = name.to_ascii_lowercase();
        if let Some(model) = Self::all().find(|model| model.key == key) {
            return Ok(model);
        }
        if name.contains(['/', '.']) || Path::new(name).exists() {
            return Self::from_file(Path::new(name));
        }
        let known = Self::all().map(|model| model.key).collect::<Vec<_>>().join(", ");
        Err(ModelError::Unknown { name: name.into(), known })
    }

    /// The model that fits what a topology says about its GPUs: first the PCI
    /// device id, then the compute capability.
    pub fn guess(device: Option<u16>, sm: Option<i32>) -> Option<Self> {
        let fits = |model: &Self| sm.is_none_or(|sm| model.sm() == sm);
        let by_id = Self::all().find(|model| device.is_some_and(|id| model.devices.contains(&id)));
        // An id of another capability is a template's, not the machine's.
        by_id.filter(fits).or_else(|| sm.and_then(|_| Self::all().find(fits)))
    }

    /// The model of this PCI device id, or else of this name, as `nvidia-smi`
    /// writes it: older versions cut it and end it with `...`.
    pub fn of_card(device: Option<u16>, name: Option<&str>) -> Option<Self> {
        let by_id = Self::all().find(|model| device.is_some_and(|id| model.devices.contains(&id)));
        by_id.or_else(|| Self::all().find(|model| name.is_some_and(|name| model.is_called(name))))
    }

    fn is_called(&self, name: &str) -> bool {
        let bare = |name: &str| {
            let name = name.trim().to_ascii_lowercase();
            name.strip_prefix("nvidia ").unwrap_or(&name).to_owned()
        };
        let own = bare(&self.name);
        match name.trim().strip_suffix("...") {
            // "NVIDIA A100-SXM..." is enough, "NVIDIA A..." is not.
            Some(cut) => bare(cut).len() >= 6 && own.starts_with(&bare(cut)),
            None => own == bare(name),
        }
    }

    /// Reads a user's model: lines `name = value`, where `#` begins a comment.
    /// `like` names a known model whose figures hold where none are given.
    ///
    /// # Errors
    /// [`ModelError`] with the line.
    pub fn from_file(path: &Path) -> Result<Self, ModelError> {
        let read = |error| ModelError::Read { path: path.into(), error };
        let mut text = String::new();
        let file = crate::nccl::image::open_regular(path).map_err(read)?;
        file.take(1 << 16).read_to_string(&mut text).map_err(read)?;
        let mut model = Self::from(&ROWS[0]);
        model.key = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        model.source = path.display().to_string();
        model.devices.clear();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = |why| ModelError::Line { path: path.into(), line: at + 1, why };
            let (name, value) =
                line.split_once('=').ok_or_else(|| bad("it is not like name = value".into()))?;
            model.set(name.trim(), value.trim().trim_matches('"')).map_err(bad)?;
        }
        Ok(model)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let f = &mut self.figures;
        match name {
            "like" => {
                let row = ROWS.iter().find(|row| row.key == value);
                let like = Self::from(row.ok_or_else(|| format!("no model {value:?}"))?);
                (self.figures, self.name) = (like.figures, like.name);
                (self.links, self.bridge, self.pcie) = (like.links, like.bridge, like.pcie);
            }
            "name" => self.name = value.replace(['\n', '\0'], " "),
            "compute_capability" => {
                let parts = value.split_once('.');
                let (major, minor) = parts.ok_or("a compute capability is like 9.0")?;
                (f.major, f.minor) = (number(major, 1)?, number(minor, 1)?);
            }
            "multiprocessors" => f.processors = number(value, 1)?,
            "shared_memory_per_block_kib" => f.shared_block = number(value, 1 << 10)?,
            "shared_memory_per_multiprocessor_kib" => f.shared_processor = number(value, 1 << 10)?,
            "clock_mhz" => f.clock_khz = number(value, 1000)?,
            "memory_clock_mhz" => f.memory_khz = number(value, 1000)?,
            "memory_bus_bits" => f.bus_bits = number(value, 1)?,
            "l2_cache_mib" => f.cache = number(value, 1 << 20)?,
            "memory_mib" => f.memory = number::<u64>(value, 1 << 20)?,
            "nvlinks" => self.links = number(value, 1)?,
            "nvlink_bridge" => self.bridge = number(value, 1)?,
            "pcie_generation" => self.pcie = generation(value)?,
            "peer_access" => f.peer = yes(value)?,
            "multicast" => f.multicast = yes(value)?,
            "source" => value.clone_into(&mut self.source),
            _ => return Err(format!("no figure is called {name:?}")),
        }
        Ok(())
    }

    /// The model as a file that [`from_file`](Self::from_file) reads.
    pub fn to_text(&self) -> String {
        let f = &self.figures;
        let mut text = format!("name = \"{}\"\nsource = \"{}\"\n", self.name, self.source);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "compute_capability = \"{}.{}\"", f.major, f.minor);
        for (name, value) in [
            ("multiprocessors", i64::from(f.processors)),
            ("shared_memory_per_block_kib", i64::from(f.shared_block >> 10)),
            ("shared_memory_per_multiprocessor_kib", i64::from(f.shared_processor >> 10)),
            ("clock_mhz", i64::from(f.clock_khz / 1000)),
            ("memory_clock_mhz", i64::from(f.memory_khz / 1000)),
            ("memory_bus_bits", i64::from(f.bus_bits)),
            ("l2_cache_mib", i64::from(f.cache >> 20)),
            ("memory_mib", (f.memory >> 20).cast_signed()),
            ("nvlinks", i64::from(self.links)),
            ("nvlink_bridge", i64::from(self.bridge)),
            ("pcie_generation", i64::from(self.pcie)),
        ] {
            let _ = writeln!(text, "{name} = {value}");
        }
        let _ = writeln!(text, "peer_access = {}\nmulticast = {}", f.peer, f.multicast);
        text
    }
}

/// A number from 0 up, times a unit.
fn number<T: TryFrom<u64>>(text: &str, unit: u64) -> Result<T, String> {
    let value = text.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    value
        .and_then(|value| T::try_from(value).ok())
        .ok_or_else(|| format!("{text:?} is no number in range"))
}

/// A generation that NCCL knows the speed of.
fn generation(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|generation| (1..=6).contains(generation))
        .ok_or_else(|| format!("{text:?} is no PCI Express generation from 1 to 6"))
}

fn yes(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_survives_its_own_file() {
        let folder = tempfile::tempdir().expect("temp folder");
        for model in Model::all() {
            let path = folder.path().join(&model.key);
            std::fs::write(&path, model.to_text()).expect("space for it");
            let mut read = Model::from_file(&path).expect("its own text");
            read.devices.clone_from(&model.devices);
            read.figures.pci_id = model.figures.pci_id;
            assert_eq!(read, model);
        }
    }

    #[test]
    fn bad_lines_are_named() {
        let folder = tempfile::tempdir().expect("temp folder");
        let path = folder.path().join("mine.toml");
        for line in [
            "clock_mhz = -3",
            "like = \"x\"",
            "what = 1",
            "lonely",
            "peer_access = 7",
            "pcie_generation = 9",
        ] {
            std::fs::write(&path, format!("# mine\nlike = \"h100\"\n{line}\n")).expect("space");
            let error = Model::from_file(&path).expect_err("a bad line").to_string();
            assert!(error.contains("line 3"), "{error}");
        }
        let unknown = Model::named("h1000").expect_err("no such model").to_string();
        assert!(unknown.contains("rtxpro6000"), "{unknown}");
    }

    #[test]
    fn cards_are_known_by_their_id_and_by_their_name() {
        let key = |device, name| Model::of_card(device, name).map(|model| model.key);
        assert_eq!(key(Some(0x2330), Some("NVIDIA H200")).as_deref(), Some("h100"));
        assert_eq!(key(Some(1), Some("NVIDIA H200")).as_deref(), Some("h200"));
        assert_eq!(key(None, Some("A100-SXM4-80GB")).as_deref(), Some("a100"));
        assert_eq!(key(None, Some("NVIDIA RTX PRO 6000...")).as_deref(), Some("rtxpro6000"));
        assert_eq!(key(None, Some("NVIDIA A...")), None);
        assert_eq!(key(None, Some("Tesla T4")), None);
        assert_eq!(key(None, None), None);
    }

    #[test]
    fn a_template_id_does_not_overrule_the_capability() {
        let key = |device, sm| Model::guess(device, sm).map(|model| model.key);
        assert_eq!(key(Some(0x2330), Some(80)).as_deref(), Some("a100"));
        assert_eq!(key(Some(0x20b5), Some(80)).as_deref(), Some("a100-pcie"));
        assert_eq!(key(None, Some(120)).as_deref(), Some("rtxpro6000"));
        assert_eq!(key(Some(0x1234), None), None);
        assert_eq!(key(None, Some(61)), None);
    }
}
