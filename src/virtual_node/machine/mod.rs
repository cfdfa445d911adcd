//! Finds out which machine a user means: the name of a preset, a file with NCCL's
//! XML, or files with what `nvidia-smi topo -m` and `lscpu` print. The result is
//! a `Topology` and the model of its GPUs, with notes about what was assumed.

mod build;
mod cards;
mod lscpu;
mod matrix;
pub mod presets;

use super::models::Model;
use super::topology::{Topology, TopologyError, read_text};
use build::Parts;
use cards::Card;
use lscpu::Processors;
use matrix::Matrix;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

impl Topology {
    /// The machine that a user names, and its GPUs. `parts` is one preset, one
    /// file with NCCL's XML, or one or more files that together hold what
    /// `nvidia-smi topo -m` and `lscpu` print, and `nvidia-smi -q` if possible.
    /// `gpu` is a model or a model's file; it must not contradict the texts.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn named(parts: &[OsString], gpu: Option<&str>) -> Result<(Self, Model), TopologyError> {
        let preset = |part: &OsString| part.to_str().and_then(presets::find);
        if let [part] = parts
            && let Some(preset) = preset(part)
        {
            let origin = PathBuf::from(format!("preset {}", preset.name));
            return Self::parse(preset.text, &origin)?.with_model(gpu);
        }
        let origin = origin(parts);
        let bad = |why: String| TopologyError::Bad { path: origin.clone(), why };
        if parts.is_empty() {
            return Err(bad(format!("none is named; presets: {}", presets::names())));
        }
        if let Some(part) = parts.iter().find(|part| preset(part).is_some()) {
            let name = part.display();
            return Err(bad(format!("{name} is a preset, which stands alone")));
        }
        let mut texts = Vec::new();
        for part in parts {
            texts.push(read(Path::new(part))?);
        }
        match texts.iter().filter(|text| is_xml(text)).count() {
            0 => Self::from_texts(&texts.join("\n"), &origin, gpu),
            1 if texts.len() == 1 => Self::parse(&texts[0], &origin)?.with_model(gpu),
            _ => Err(bad("NCCL's XML is a whole machine: give it alone".into())),
        }
    }

    /// The machine that the output of `nvidia-smi topo -m`, `lscpu` and, if it
    /// is there, `nvidia-smi -q` describe.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn from_texts(
        text: &str,
        origin: &Path,
        gpu: Option<&str>,
    ) -> Result<(Self, Model), TopologyError> {
        let bad = |why: String| TopologyError::Bad { path: origin.into(), why };
        let parts = read_parts(text).map_err(bad)?;
        let (model, mut notes) = model(&parts.cards, gpu, origin)?;
        let (text, assumed) = build::build(&parts, &model).map_err(bad)?;
        notes.extend(assumed);
        let mut topology = Self::parse(&text, origin)?;
        notes.append(&mut topology.notes);
        topology.notes = notes;
        Ok((topology, model))
    }

    /// The model of an XML's GPUs, with a note where it is not what it says.
    fn with_model(mut self, gpu: Option<&str>) -> Result<(Self, Model), TopologyError> {
        let mut model = self.model(gpu)?;
        let device = self.gpus[0].device; // `parse` refuses a text without GPUs
        let own = Model::of_card(device, None).filter(|own| own.sm() == model.sm());
        match (own, device) {
            (Some(own), _) if own.name != model.name => {
                self.notes.push(differs(&model, &own.name));
            }
            (None, Some(id)) => {
                self.notes.push(format!(
                    "no known GPU model of sm {} has the PCI id 10de:{id:04x}; figures of {} are used",
                    model.sm(),
                    model.key
                ));
                if gpu.is_none() {
                    model.name = format!("GPU 10de:{id:04x} (figures of {})", model.name);
                }
            }
            (None, None) if gpu.is_none() => self.notes.push(format!(
                "the topology does not name its GPU model; figures of {} are used",
                model.key
            )),
            _ => {}
        }
        Ok((self, model))
    }
}

fn differs(model: &Model, own: &str) -> String {
    format!("the topology is of {own}; figures of {} are used", model.key)
}

/// A file, or that there is neither such a file nor such a preset.
fn read(path: &Path) -> Result<String, TopologyError> {
    match read_text(path) {
        Err(TopologyError::Read { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
            let why = format!("there is no such file or preset; presets: {}", presets::names());
            Err(TopologyError::Bad { path: path.into(), why })
        }
        other => other,
    }
}

/// A word of a text, short enough for a message.
fn quoted(word: &str) -> String {
    const MOST: usize = 60;
    match word.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?}...", &word[..end]),
        None => format!("{word:?}"),
    }
}

/// What messages call several files together.
fn origin(parts: &[OsString]) -> PathBuf {
    PathBuf::from(parts.join(std::ffi::OsStr::new(" + ")))
}

/// XML begins with an element, a comment or a declaration.
fn is_xml(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with('<')
}

fn read_parts(text: &str) -> Result<Parts, String> {
    let text = matrix::without_escapes(text);
    let (matrix, processors) = (Matrix::find(&text)?, Processors::find(&text)?);
    let cards = cards::find(&text)?;
    match (matrix, processors) {
        (Some(matrix), Some(processors)) => Ok(Parts { matrix, processors, cards }),
        (None, None) if cards.is_empty() => {
            Err("it is neither NCCL's XML (NCCL_TOPO_DUMP_FILE=FILE makes one) nor the output of \
             nvidia-smi topo -m and lscpu"
                .into())
        }
        (None, _) => {
            Err("the matrix of `nvidia-smi topo -m` is missing: give its output as well".into())
        }
        (_, None) => {
            Err("the processors are missing: give the output of `LC_ALL=C lscpu` as well, in the \
             same file or as another --topology"
                .into())
        }
    }
}

/// The model of the cards: the one asked for, or the one that the texts name.
fn model(
    cards: &[Card],
    gpu: Option<&str>,
    origin: &Path,
) -> Result<(Model, Vec<String>), TopologyError> {
    let bad = |why: String| TopologyError::Bad { path: origin.into(), why };
    let name = one_name(cards).map_err(bad)?;
    let own = cards.first().and_then(|card| Model::of_card(card.device(), name));
    let Some(gpu) = gpu else {
        return own.map(|model| (model, Vec::new())).ok_or_else(|| bad(unknown(name)));
    };
    let model = Model::named(gpu)?;
    let notes = match (own, name) {
        (Some(own), _) if own.sm() != model.sm() => {
            return Err(bad(format!(
                "its GPUs are {} of compute capability {}, the model {} is of {}",
                own.name,
                own.sm(),
                model.key,
                model.sm()
            )));
        }
        (Some(own), _) if own.name != model.name => vec![differs(&model, &own.name)],
        (None, Some(name)) => vec![differs(&model, &quoted(name))],
        _ => Vec::new(),
    };
    Ok((model, notes))
}

/// The product name of all cards, if they have one.
fn one_name(cards: &[Card]) -> Result<Option<&str>, String> {
    let name = cards.first().and_then(|card| card.name.as_deref());
    let mut others = cards.iter().map(|card| card.name.as_deref()).enumerate();
    match others.find(|(_, other)| *other != name) {
        None => Ok(name),
        Some((at, other)) => Err(format!(
            "GPU0 is {} and GPU{at} {}; a virtual node has GPUs of one model",
            quoted(name.unwrap_or_default()),
            quoted(other.unwrap_or_default())
        )),
    }
}

fn unknown(name: Option<&str>) -> String {
    match name {
        Some(name) => format!("no GPU model is known for {}: name one with --gpu", quoted(name)),
        None => "it does not say which GPUs these are: name the model with --gpu, or add the \
                 output of nvidia-smi -q"
            .into(),
    }
}

#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod tests;
