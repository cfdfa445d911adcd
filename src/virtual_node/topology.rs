//! A described machine: which GPUs there are, how they are linked, which model
//! they are, and the XML that NCCL is given. NCCL itself reads the rest from the
//! same text. Reading XML is in `xml`; finding out what a user named, and making
//! XML from the texts of other tools, is in `machine`.

use super::models::{Model, ModelError};
use super::xml;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Topologies of machines with 16 GPUs and many NICs take 20 KB.
const MOST_BYTES: u64 = 1 << 20;

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
    pub(super) number: Option<u32>,
}

/// A topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Where it came from, for messages.
    pub origin: PathBuf,
    /// The elements, in the form that NCCL is given.
    pub text: String,
    /// The GPUs by device number.
    pub gpus: Vec<TopologyGpu>,
    /// What a reader of a result should know: what was assumed, left out, or
    /// does not fit. Sentences without a full stop.
    pub notes: Vec<String>,
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
        Self::parse(&read_text(path)?, path)
    }

    /// As [`open`](Self::open), of a text; `origin` is for messages.
    ///
    /// # Errors
    /// [`TopologyError::Bad`].
    pub fn parse(text: &str, origin: &Path) -> Result<Self, TopologyError> {
        let read = xml::read(text.trim_start_matches('\u{feff}'));
        let content = read.map_err(|why| TopologyError::Bad { path: origin.into(), why })?;
        let (gpus, text, notes) = (content.gpus, content.clean, content.notes);
        Ok(Self { origin: origin.into(), text, gpus, notes })
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

/// A small text file of any name.
///
/// # Errors
/// [`TopologyError`]: it cannot be read, is no regular file, is too large or is
/// no text.
pub fn read_text(path: &Path) -> Result<String, TopologyError> {
    let failed = |error| TopologyError::Read { path: path.into(), error };
    let file = crate::nccl::image::open_regular(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let bad = |why: &str| TopologyError::Bad { path: path.into(), why: why.into() };
    if bytes.len() as u64 > MOST_BYTES {
        return Err(bad("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| bad("it is not UTF-8"))
}

fn no_model(gpu: &TopologyGpu) -> String {
    let known = match (gpu.device, gpu.sm) {
        (None, None) => {
            return "it does not say which GPUs these are: name the model with --gpu".into();
        }
        (Some(id), None) => format!("PCI id 10de:{id:04x}"),
        (None, Some(sm)) => format!("sm {sm}"),
        (Some(id), Some(sm)) => format!("PCI id 10de:{id:04x} and sm {sm}"),
    };
    format!("no known GPU model has {known}: name one with --gpu, or describe one in a file")
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
