//! A described machine: NCCL's topology XML, as far as the virtual node must
//! agree with it (which GPUs there are, where, and how they are linked). NCCL
//! itself reads the rest from the same text. Files come from anywhere, so all
//! sizes are limited and nothing is expanded.

use super::models::{Model, ModelError};
use super::runtime::description::{MOST_GPUS, bus_numbers};
use quick_xml::events::{BytesStart, Event};
use std::collections::HashSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Topologies of machines with 16 GPUs and many NICs take 20 KB.
const MOST_BYTES: u64 = 1 << 20;
/// NCCL's own limit is 1024 elements up to 2.19 and 16384 later.
const MOST_ELEMENTS: usize = 16384;
/// PCI trees are some ten levels deep; NCCL recurses once for each.
const MOST_DEPTH: usize = 64;
/// NCCL cuts attributes after 255 bytes.
const MOST_TEXT: usize = 254;
/// The PCI class of an NVSwitch, as NVLink targets have it.
const SWITCH_CLASS: &str = "0x068000";

/// One GPU of a topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyGpu {
    /// PCI address in lower case.
    pub bus: String,
    /// PCI device id, when the text has one.
    pub device: Option<u16>,
    /// Compute capability as NCCL writes it (90), when the text has it.
    pub sm: Option<i32>,
    /// NVLinks; `None` when the text has no `gpu` element, so that NCCL asks.
    pub links: Option<u32>,
    /// All links lead to switches.
    pub switched: bool,
    /// The number that the machine's management library gave it.
    number: Option<u32>,
}

/// A topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Where it came from, for messages.
    pub origin: PathBuf,
    /// The text, which NCCL is given as it is.
    pub text: String,
    /// The GPUs by device number.
    pub gpus: Vec<TopologyGpu>,
}

/// Why a text is no usable topology.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file cannot be read.
    #[error("read the topology {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// It is no topology, or none that can be used.
    #[error("topology {}: {why}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong and, where there is one, the way out.
        why: String,
    },
    /// The model is not known.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl Topology {
    /// Reads NCCL's XML (as `NCCL_TOPO_DUMP_FILE` writes it) from a file.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn open(path: &Path) -> Result<Self, TopologyError> {
        let failed = |error| TopologyError::Read { path: path.into(), error };
        let file = crate::nccl::image::open_regular(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        let bad = |why: &str| TopologyError::Bad { path: path.into(), why: why.into() };
        if bytes.len() as u64 > MOST_BYTES {
            return Err(bad("it is larger than 1 MiB"));
        }
        let text = String::from_utf8(bytes).map_err(|_| bad("it is not UTF-8"))?;
        Self::parse(text, path)
    }

    /// As [`open`](Self::open), of a text; `origin` is for messages.
    ///
    /// # Errors
    /// [`TopologyError::Bad`].
    pub fn parse(text: String, origin: &Path) -> Result<Self, TopologyError> {
        let mut reader = Reader::default();
        let read = reader.read(&text).and_then(|()| reader.finish());
        let gpus = read.map_err(|why| TopologyError::Bad { path: origin.into(), why })?;
        Ok(Self { origin: origin.into(), text, gpus })
    }

    /// The model of the GPUs: the one asked for, or the one that fits.
    ///
    /// # Errors
    /// [`TopologyError::Bad`] when they contradict each other or none fits.
    pub fn model(&self, asked: Option<&str>) -> Result<Model, TopologyError> {
        let bad = |why: String| TopologyError::Bad { path: self.origin.clone(), why };
        let first = &self.gpus[0]; // `parse` refuses a text without GPUs
        let model = match asked {
            Some(name) => Model::named(name)?,
            None => Model::guess(first.device, first.sm).ok_or_else(|| bad(no_model(first)))?,
        };
        match self.gpus.iter().find(|gpu| gpu.sm.is_some_and(|sm| sm != model.sm())) {
            None => Ok(model),
            Some(gpu) => Err(bad(format!(
                "its GPU {} is of compute capability {} (sm), the model {} of {}",
                gpu.bus,
                gpu.sm.unwrap_or_default(),
                model.key,
                model.sm()
            ))),
        }
    }

    /// Whether GPUs reach each other through NVSwitches, which multicast needs.
    pub fn switched(&self) -> bool {
        self.gpus.iter().all(|gpu| gpu.links.is_none() || gpu.switched)
    }
}

fn no_model(gpu: &TopologyGpu) -> String {
    let device = gpu.device.map_or("no PCI device id".into(), |id| format!("PCI id 10de:{id:04x}"));
    let sm = gpu.sm.map_or("no sm".into(), |sm| format!("sm {sm}"));
    format!("no known GPU model has {device} and {sm}: name one, or describe one in a file")
}

/// Reads the elements; errors are sentences.
#[derive(Default)]
struct Reader {
    path: Vec<Element>,
    elements: usize,
    system: bool,
    gpus: Vec<TopologyGpu>,
    addresses: HashSet<String>,
}

/// An element that is open.
struct Element {
    name: Vec<u8>,
    /// Of a PCI device that is a GPU: what is known so far.
    gpu: Option<TopologyGpu>,
    /// A `gpu` element was inside.
    told: bool,
}

impl Reader {
    fn read(&mut self, text: &str) -> Result<(), String> {
        let mut reader = quick_xml::Reader::from_str(text);
        loop {
            let event = reader.read_event();
            let at = || format!(" (byte {})", reader.buffer_position());
            match event.map_err(|error| format!("it is no XML: {error}{}", at()))? {
                Event::Start(start) => self.open(&start).map_err(|why| why + &at())?,
                Event::Empty(start) => {
                    self.open(&start).map_err(|why| why + &at())?;
                    self.close();
                }
                Event::End(_) => self.close(),
                Event::DocType(_) => {
                    return Err("it declares a document type, which NCCL cannot read".into());
                }
                Event::Eof if self.path.is_empty() => return Ok(()),
                Event::Eof => return Err("it ends inside an element".into()),
                _ => {}
            }
        }
    }

    fn open(&mut self, start: &BytesStart<'_>) -> Result<(), String> {
        self.elements += 1;
        if self.elements > MOST_ELEMENTS || self.path.len() >= MOST_DEPTH {
            return Err(format!("it has over {MOST_ELEMENTS} elements or {MOST_DEPTH} levels"));
        }
        let attributes = Attributes::read(start)?;
        let name = start.name().as_ref().to_vec();
        let parent = self.path.last().map(|element| element.name.as_slice());
        let mut element = Element { name, gpu: None, told: false };
        match (element.name.as_slice(), parent) {
            (b"system", None) => self.system = true,
            (_, None) => return Err("its outermost element is not <system>".into()),
            (b"pci", _) => element.gpu = self.pci(&attributes)?,
            (b"gpu", _) => self.gpu(&attributes)?,
            (b"nvlink", Some(b"gpu")) => self.link(&attributes)?,
            _ => {}
        }
        self.path.push(element);
        Ok(())
    }

    fn close(&mut self) {
        let closed = self.path.pop();
        if let Some(gpu) = closed.and_then(|element| element.gpu) {
            self.gpus.push(gpu);
        }
    }

    /// A PCI device; a GPU when its class says so.
    fn pci(&mut self, attributes: &Attributes) -> Result<Option<TopologyGpu>, String> {
        let bus = attributes.get("busid").ok_or("a <pci> has no busid")?.to_ascii_lowercase();
        if bus_numbers(&bus).is_none() {
            return Err(format!("busid {bus:?} is not like 0000:1b:00.0"));
        }
        if !self.addresses.insert(bus.clone()) {
            return Err(format!("busid {bus} is there twice"));
        }
        let device = attributes.get("device").and_then(hex).and_then(|id| id.try_into().ok());
        let gpu = TopologyGpu { bus, device, ..TopologyGpu::default() };
        let display = attributes.get("class").is_some_and(|class| class.starts_with("0x03"));
        Ok(display.then_some(gpu))
    }

    fn gpu(&mut self, attributes: &Attributes) -> Result<(), String> {
        let parent = self.path.last_mut().ok_or("a <gpu> is outside of a <pci>")?;
        let gpu =
            parent.gpu.as_mut().ok_or("a <gpu> is in a <pci> of no display class (0x03...)")?;
        if std::mem::replace(&mut parent.told, true) {
            return Err(format!("the device {} has two <gpu> elements", gpu.bus));
        }
        let number = |name: &str| match attributes.get(name) {
            Some(text) => {
                text.parse().map(Some).map_err(|_| format!("{name}={text:?} is no number"))
            }
            None => Ok(None),
        };
        gpu.sm = number("sm")?.map(|sm: u16| i32::from(sm));
        gpu.number = number("dev")?.map(u32::from);
        gpu.links = Some(0);
        gpu.switched = true;
        Ok(())
    }

    fn link(&mut self, attributes: &Attributes) -> Result<(), String> {
        let gpu = self.path.iter_mut().rev().find_map(|element| element.gpu.as_mut());
        let gpu = gpu.ok_or("an <nvlink> belongs to no GPU")?;
        let target = attributes.get("target").ok_or("an <nvlink> has no target")?;
        if target.eq_ignore_ascii_case(&gpu.bus) {
            return Err(format!("an NVLink of {} leads to itself", gpu.bus));
        }
        let count = attributes.get("count").ok_or("an <nvlink> has no count")?;
        let count: u32 = count.parse().ok().filter(|&count| count <= 64).ok_or_else(|| {
            format!("an <nvlink> has count={count:?}, which is no number up to 64")
        })?;
        gpu.links = Some(gpu.links.unwrap_or(0).saturating_add(count).min(64));
        gpu.switched &= attributes.get("tclass") == Some(SWITCH_CLASS);
        Ok(())
    }

    /// The GPUs in device order.
    fn finish(&mut self) -> Result<Vec<TopologyGpu>, String> {
        let mut gpus = std::mem::take(&mut self.gpus);
        match gpus.len() {
            _ if !self.system => return Err("it has no <system>".into()),
            0 => {
                return Err("it lists no GPU (a template, to which NCCL adds the machine's own): \
                            dump one on the machine with NCCL_TOPO_DUMP_FILE"
                    .into());
            }
            count if count > MOST_GPUS => {
                return Err(format!("it lists {count} GPUs, and NCCL knows up to {MOST_GPUS}"));
            }
            _ => {}
        }
        for gpu in &mut gpus {
            gpu.switched &= gpu.links.is_some_and(|links| links > 0);
        }
        let numbers: HashSet<u32> = gpus.iter().filter_map(|gpu| gpu.number).collect();
        let numbered = gpus.iter().filter(|gpu| gpu.number.is_some()).count();
        match () {
            () if numbers.len() != numbered => return Err("two GPUs have the same dev".into()),
            () if numbered == gpus.len() => gpus.sort_by_key(|gpu| gpu.number),
            () if numbered == 0 => {}
            () => return Err("some GPUs have a dev and some have none".into()),
        }
        Ok(gpus)
    }
}

/// An element's attributes.
struct Attributes(Vec<(String, String)>);

impl Attributes {
    fn read(start: &BytesStart<'_>) -> Result<Self, String> {
        let mut all = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| format!("an attribute is wrong: {error}"))?;
            let (name, value) = (attribute.key.as_ref(), attribute.value.as_ref());
            if name.len() > MOST_TEXT || value.len() > MOST_TEXT {
                return Err(format!("an attribute is longer than {MOST_TEXT} bytes"));
            }
            if value.contains(&b'&') {
                return Err("an attribute has an entity, which NCCL does not replace".into());
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            all.push((text(name), text(value)));
        }
        Ok(Self(all))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
