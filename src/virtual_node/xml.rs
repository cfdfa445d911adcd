//! Reads NCCL's topology XML, as far as the virtual node must agree with NCCL
//! about it: which GPUs there are, where, and how they are linked. Writes the
//! same elements again in the form that NCCL's own small parser accepts, also with
//! other attributes. Files come from anywhere, so all sizes are limited and nothing is expanded; what a
//! topology means is decided in `topology`.

use super::runtime::description::{MOST_GPUS, bus_numbers};
use super::topology::TopologyGpu;
use quick_xml::events::{BytesStart, Event};
use std::collections::HashSet;

/// NCCL's own limit is 1024 elements up to 2.19 and 16384 later.
const MOST_ELEMENTS: usize = 16384;
/// NCCL's limit of elements in one element: 32 in 2.18, 128 in 2.27, later this.
const MOST_CHILDREN: usize = 640;
/// PCI trees are some ten levels deep; NCCL recurses once for each.
const MOST_DEPTH: usize = 64;
/// NCCL cuts attributes after 255 bytes.
const MOST_TEXT: usize = 254;
/// NCCL ignores further attributes of one element.
const MOST_ATTRIBUTES: usize = 16;
/// The PCI class of an NVSwitch, as NVLink targets have it.
pub const SWITCH_CLASS: &str = "0x068000";
/// The version that NCCL asks for, in all releases.
const VERSION: &str = "1";

/// What a text says.
pub struct Content {
    /// The GPUs by device number.
    pub gpus: Vec<TopologyGpu>,
    /// The elements as NCCL can read them: no comments, declarations or blanks
    /// between attributes.
    pub clean: String,
    /// What the reader of a result should know, as sentences.
    pub notes: Vec<String>,
}

/// Reads a text. The error is a sentence about "it".
pub fn read(text: &str) -> Result<Content, String> {
    let mut reader = Reader::default();
    reader.read(text)?;
    reader.finish()
}

/// A text that [`read`] has cleaned, with these attributes in each element of
/// this name; `None` when there is no such element, one of them lacks such an
/// attribute, or all have them already.
pub fn with_attributes(clean: &str, element: &str, values: &[(&str, &str)]) -> Option<String> {
    let mut reader = quick_xml::Reader::from_str(clean);
    let (mut out, mut changed) = (String::new(), false);
    loop {
        let event = reader.read_event().ok()?;
        let (start, end) = match &event {
            Event::Start(start) => (start, ">"),
            Event::Empty(start) => (start, "/>"),
            Event::End(tag) => {
                write_end(tag.name().as_ref(), &mut out);
                continue;
            }
            Event::Eof => return changed.then_some(out),
            _ => continue,
        };
        let mut attributes = Attributes::read(start).ok()?;
        if start.name().as_ref() == element.as_bytes() {
            for (name, value) in values {
                changed |= attributes.replace(name, value)? != *value;
            }
        }
        attributes.write(start.name().as_ref(), end, &mut out);
    }
}

/// Reads the elements; errors are sentences.
#[derive(Default)]
struct Reader {
    path: Vec<Element>,
    elements: usize,
    system: bool,
    gpus: Vec<TopologyGpu>,
    addresses: HashSet<String>,
    nodes: HashSet<String>,
    hosts: HashSet<String>,
    /// NVLinks' targets that are no switches.
    peers: HashSet<String>,
    clean: String,
    /// `net` elements; processors and devices that NCCL completes by itself.
    networks: usize,
    incomplete: (usize, usize),
    /// A device that does not say what it is.
    unclassed: Option<String>,
}

/// An element that is open.
struct Element {
    name: Vec<u8>,
    children: usize,
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
                Event::Start(start) => self.open(&start, ">").map_err(|why| why + &at())?,
                Event::Empty(start) => {
                    self.open(&start, "/>").map_err(|why| why + &at())?;
                    self.close(false);
                }
                Event::End(_) => self.close(true),
                Event::DocType(_) => {
                    return Err("it declares a document type, which NCCL cannot read".into());
                }
                Event::Text(text) if is_blank(&text) => {}
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => {
                    return Err(format!("it has text between elements{}", at()));
                }
                Event::Eof if self.path.is_empty() => return Ok(()),
                Event::Eof => return Err("it ends inside an element".into()),
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            }
        }
    }

    fn open(&mut self, start: &BytesStart<'_>, end: &str) -> Result<(), String> {
        self.count()?;
        let attributes = Attributes::read(start)?;
        let name = start.name().as_ref().to_vec();
        check_name(&name)?;
        let parent = self.path.last().map(|element| element.name.as_slice());
        let mut element = Element { name, children: 0, gpu: None, told: false };
        match (element.name.as_slice(), parent) {
            (b"system", None) if self.system => return Err("it has two <system>".into()),
            (b"system", None) => self.system(&attributes)?,
            (b"nvidia_smi_log", None) => {
                return Err("it is the XML of nvidia-smi; give the texts of nvidia-smi topo -m \
                            and lscpu instead"
                    .into());
            }
            (_, None) => return Err("its outermost element is not <system>".into()),
            (b"cpu", Some(b"system")) => self.cpu(&attributes)?,
            (b"cpu", _) => return Err("a <cpu> is not directly in <system>".into()),
            (b"pci", Some(b"cpu" | b"pci")) => element.gpu = self.pci(&attributes)?,
            (b"pci", _) => return Err("a <pci> is neither in a <cpu> nor in a <pci>".into()),
            (b"gpu", _) => self.gpu(&attributes)?,
            (b"net", _) => self.networks += 1,
            (b"nvlink", Some(b"gpu")) => self.link(&attributes)?,
            _ => {}
        }
        attributes.write(&element.name, end, &mut self.clean);
        self.path.push(element);
        Ok(())
    }

    fn count(&mut self) -> Result<(), String> {
        self.elements += 1;
        if self.elements > MOST_ELEMENTS || self.path.len() >= MOST_DEPTH {
            return Err(format!("it has over {MOST_ELEMENTS} elements or {MOST_DEPTH} levels"));
        }
        if let Some(parent) = self.path.last_mut() {
            parent.children += 1;
            if parent.children > MOST_CHILDREN {
                return Err(format!("an element has over {MOST_CHILDREN} elements inside"));
            }
        }
        Ok(())
    }

    fn close(&mut self, write: bool) {
        let Some(closed) = self.path.pop() else { return };
        if write {
            write_end(&closed.name, &mut self.clean);
        }
        self.gpus.extend(closed.gpu);
    }

    fn system(&mut self, attributes: &Attributes) -> Result<(), String> {
        self.system = true;
        match attributes.get("version") {
            Some(VERSION) => Ok(()),
            Some(other) => {
                Err(format!("its <system> has version={other:?}, and NCCL reads {VERSION:?}"))
            }
            None => Err(format!("its <system> has no version; NCCL reads version=\"{VERSION}\"")),
        }
    }

    /// A NUMA node.
    fn cpu(&mut self, attributes: &Attributes) -> Result<(), String> {
        let id = attributes.get("numaid").ok_or("a <cpu> has no numaid")?;
        let number: i64 = attributes.number("numaid", -1..=4095)?.unwrap_or(-1);
        for name in ["familyid", "modelid"] {
            attributes.number(name, 0..=65535)?;
        }
        if !self.nodes.insert(number.to_string()) {
            return Err(format!("the <cpu> of numaid {id} is there twice"));
        }
        self.hosts.extend(attributes.get("host_hash").map(str::to_ascii_lowercase));
        if self.hosts.len() > 1 {
            return Err("its <cpu> elements are of several machines (host_hash)".into());
        }
        let x86 = attributes.get("arch").is_none_or(|arch| arch == "x86_64");
        let needed: &[&str] =
            if x86 { &["arch", "vendor", "familyid", "modelid"] } else { &["arch"] };
        self.incomplete.0 += usize::from(needed.iter().any(|n| attributes.get(n).is_none()));
        Ok(())
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
        if let Some(gpu) = self.path.last().and_then(|parent| parent.gpu.as_ref()) {
            return Err(format!("the device {bus} is below the GPU {}", gpu.bus));
        }
        attributes.number("link_width", 0..=64)?;
        let class = attributes.get("class").unwrap_or_else(|| {
            self.unclassed.get_or_insert_with(|| bus.clone());
            ""
        });
        let width = attributes.get("link_width").filter(|width| !width.is_empty());
        let speed = attributes.get("link_speed").filter(|speed| !speed.is_empty());
        self.incomplete.1 += usize::from(speed.is_none() || width.is_none());
        let device = attributes.get("device").and_then(hex).and_then(|id| id.try_into().ok());
        let gpu = TopologyGpu { bus, device, ..TopologyGpu::default() };
        Ok(class.starts_with("0x03").then_some(gpu))
    }

    fn gpu(&mut self, attributes: &Attributes) -> Result<(), String> {
        let parent = self.path.last_mut().ok_or("a <gpu> is outside of a <pci>")?;
        let gpu =
            parent.gpu.as_mut().ok_or("a <gpu> is in a <pci> of no display class (0x03...)")?;
        if std::mem::replace(&mut parent.told, true) {
            return Err(format!("the device {} has two <gpu> elements", gpu.bus));
        }
        // Bounds within which both NCCL's int and ours hold.
        let number = |name| attributes.number(name, 0..=65535);
        gpu.sm = number("sm")?.and_then(|sm| sm.try_into().ok());
        gpu.number = number("dev")?.and_then(|dev| dev.try_into().ok());
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
        if attributes.get("tclass").is_none_or(|class| class.starts_with("0x03")) {
            self.peers.insert(target.to_ascii_lowercase());
        }
        Ok(())
    }

    /// The GPUs in device order.
    fn finish(mut self) -> Result<Content, String> {
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
        if let Some(bus) = self.unclassed {
            return Err(format!("the device {bus} has no class, which NCCL needs"));
        }
        for gpu in &mut gpus {
            gpu.switched &= gpu.links.is_some_and(|links| links > 0);
        }
        sort(&mut gpus)?;
        let notes = self.notes(&gpus);
        Ok(Content { gpus, clean: self.clean, notes })
    }

    fn notes(&self, gpus: &[TopologyGpu]) -> Vec<String> {
        let mut notes = Vec::new();
        let missing = self.peers.iter().filter(|peer| gpus.iter().all(|gpu| gpu.bus != **peer));
        match missing.count() {
            0 => {}
            n => notes.push(format!(
                "NVLinks lead to {n} addresses that the text does not list as GPUs; NCCL leaves \
                 these links out"
            )),
        }
        if self.incomplete.0 > 0 {
            let n = self.incomplete.0;
            notes.push(format!(
                "{n} <cpu> elements do not say which processor it is; NCCL takes this machine's"
            ));
        }
        if self.incomplete.1 > 0 {
            let n = self.incomplete.1;
            notes.push(format!(
                "{n} PCI devices have no link_speed or link_width; NCCL takes its own default"
            ));
        }
        if self.networks > 0 {
            notes.push(format!("{} network devices of the text are not used", self.networks));
        }
        notes
    }
}

/// By device number, which all or none must have.
fn sort(gpus: &mut [TopologyGpu]) -> Result<(), String> {
    let numbers: HashSet<u32> = gpus.iter().filter_map(|gpu| gpu.number).collect();
    let numbered = gpus.iter().filter(|gpu| gpu.number.is_some()).count();
    match () {
        () if numbers.len() != numbered => Err("two GPUs have the same dev".into()),
        () if numbered == gpus.len() => {
            gpus.sort_by_key(|gpu| gpu.number);
            Ok(())
        }
        () if numbered == 0 => Ok(()),
        () => Err("some GPUs have a dev and some have none".into()),
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
            if value.iter().any(|byte| b"\"<".contains(byte) || byte.is_ascii_control()) {
                return Err("an attribute has a quotation mark, < or a control character".into());
            }
            check_name(name)?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            all.push((text(name), text(value)));
        }
        if all.len() > MOST_ATTRIBUTES {
            return Err(format!("an element has over {MOST_ATTRIBUTES} attributes"));
        }
        Ok(Self(all))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Sets an attribute that is there, and returns what it was.
    fn replace(&mut self, name: &str, value: &str) -> Option<String> {
        let (_, old) = self.0.iter_mut().find(|(known, _)| known == name)?;
        Some(std::mem::replace(old, value.into()))
    }

    /// A decimal number; an empty text is none, as NCCL writes what it does not know.
    fn number(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, String> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number
            .map(Some)
            .ok_or_else(|| format!("{name}={text:?} is no number from {least} to {most}"))
    }

    fn write(&self, name: &[u8], end: &str, to: &mut String) {
        to.push('<');
        to.push_str(&String::from_utf8_lossy(name));
        for (name, value) in &self.0 {
            to.push_str(&format!(" {name}=\"{value}\""));
        }
        to.push_str(end);
        to.push('\n');
    }
}

fn write_end(name: &[u8], to: &mut String) {
    to.push_str(&format!("</{}>\n", String::from_utf8_lossy(name)));
}

/// NCCL would end other names early, or take them for a comment.
fn check_name(name: &[u8]) -> Result<(), String> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(byte);
    match name.first() {
        Some(first) if first.is_ascii_alphabetic() && name.iter().all(plain) => Ok(()),
        _ => Err(format!("{:?} is no name", String::from_utf8_lossy(name))),
    }
}

fn is_blank(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_whitespace)
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
