//! On which GPUs the probes of a run make their communicator: two real ones
//! that nobody seems to use, else a virtual node, else none. It is tried once, without
//! any setting, before the children start: what does not work there is said
//! once, and the children make no communicator.

use super::free::{self, Free};
use super::{RunFolder, frame};
use crate::model::{EffectSource, Provenance};
use crate::nccl::surroundings;
use crate::probes::native::PROBE;
use crate::probes::wire::Fields;
use crate::process;
use crate::virtual_node::describe::describe;
use crate::virtual_node::topology::Topology;
use anyhow::{Context, Result, anyhow};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::IntoRawFd as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Two GPUs on which Ring and Tree, LL, LL128 and Simple are all possible, and
/// with few channels of their own, so that every test value can be told from
/// what NCCL does without it.
const TOPOLOGY: &str = include_str!("../../matrix/topologies/probe-a100x2.xml");

/// The field that marks the specification of a trial, which has no socket.
const TRIAL: &str = "trial";

/// The GPUs of a run.
pub struct Gpus {
    kind: Kind,
    /// What a reader of the result is told about them.
    pub source: EffectSource,
    /// Why no effect will be seen, when that was not asked for.
    pub problem: Option<String>,
}

enum Kind {
    /// No communicator is made.
    None,
    /// Files with the node's description and its topology.
    Virtual { node: PathBuf, topology: PathBuf },
    /// What `CUDA_VISIBLE_DEVICES` is to hold.
    Real(String),
}

/// What a trial needs.
pub struct Trial<'a> {
    /// The library that the probes load.
    pub library: &'a Path,
    /// The run's folder.
    pub folder: &'a RunFolder,
    /// The longest time.
    pub limit: Duration,
    /// Becomes true when the run is to end.
    pub stop: &'a AtomicBool,
}

impl Gpus {
    /// No communicator, and that is as it should be.
    pub fn unwanted(why: &str) -> Self {
        let source = EffectSource { provenance: Provenance::None, detail: why.into() };
        Self { kind: Kind::None, source, problem: None }
    }

    /// Finds out on which GPUs a communicator can be made.
    pub fn find(trial: &Trial, watched: &[&str]) -> Self {
        let why_virtual = match free::find(trial.limit, trial.stop, watched) {
            Free::Two(visible) => match Self::real(trial, &visible) {
                Ok(gpus) => return gpus,
                Err(error) => format!("the two free GPUs of this machine failed: {error:#}"),
            },
            Free::No(why) => why,
        };
        Self::virtual_node(trial, &why_virtual).unwrap_or_else(|error| {
            if trial.stop.load(Ordering::Relaxed) {
                return Self::unwanted("interrupted before one was made");
            }
            let why = format!("{error:#}");
            let source = EffectSource { provenance: Provenance::None, detail: why.clone() };
            Self { kind: Kind::None, source, problem: Some(why) }
        })
    }

    fn real(trial: &Trial, visible: &str) -> Result<Self> {
        let detail = format!("2 free GPUs of this machine ({visible})");
        let source = EffectSource { provenance: Provenance::Measured, detail };
        let gpus = Self { kind: Kind::Real(visible.into()), source, problem: None };
        gpus.tried(trial)
    }

    fn virtual_node(trial: &Trial, why: &str) -> Result<Self> {
        let (description, model) = described(trial.library)?;
        let node = trial.folder.put("node", description.as_bytes())?;
        let topology = trial.folder.put("topology.xml", TOPOLOGY.as_bytes())?;
        let detail = format!("2 x {model}, predicted; {why}");
        let source = EffectSource { provenance: Provenance::Virtual, detail };
        Self { kind: Kind::Virtual { node, topology }, source, problem: None }.tried(trial)
    }

    /// Makes one communicator in a child, with nothing set.
    fn tried(self, trial: &Trial) -> Result<Self> {
        const TOKEN: &str = "trial";
        let mut spec = Fields::default();
        spec.push("library", trial.library.as_os_str().as_bytes())
            .push("token", TOKEN)
            .push(TRIAL, "1")
            .push("limit", trial.limit.as_secs_f64().to_string());
        trial.folder.keep_out(&mut spec, true);
        self.tell(&mut spec, trial.limit);
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.arg(PROBE).arg(format!("={}", frame::hex(&spec.encode())));
        surroundings::keep_from(&mut command);
        let output =
            process::output(&mut command, trial.limit, trial.stop).context("try a communicator")?;
        let report = frame::decode(&output.stdout, TOKEN).into_iter().next();
        let report = report.with_context(|| format!("the trial ended with {}", output.status))?;
        if report.first("init").is_some() {
            // NCCL then reads its settings, though nobody sees the effect.
            let problem = report.text("no-communicator").map(str::to_owned);
            return Ok(Self { problem, ..self });
        }
        let why = ["init-error", "error"].iter().find_map(|key| report.text(key));
        Err(anyhow!(why.unwrap_or("NCCL made no communicator").to_owned()))
    }

    /// Adds what a probe has to know to its specification; half of the time
    /// that it has is for the communicator.
    pub fn tell(&self, spec: &mut Fields, limit: Duration) {
        spec.push("patience", (limit / 2).as_secs_f64().to_string());
        match &self.kind {
            Kind::None => {
                if let Some(why) = &self.problem {
                    spec.push("no-init", why);
                }
            }
            Kind::Real(visible) => {
                spec.push("visible", visible);
            }
            Kind::Virtual { node, topology } => tell_node(spec, node, topology),
        }
    }

    /// Real GPUs are not shared by two probes.
    pub fn jobs(&self, wanted: usize) -> usize {
        if matches!(self.kind, Kind::Real(_)) { 1 } else { wanted }
    }
}

/// The node's description for this library, as text, and the GPU's name.
fn described(library: &Path) -> Result<(String, String)> {
    let topology = Topology::parse(TOPOLOGY, Path::new("probe-a100x2.xml"))?;
    let model = topology.model(None)?;
    let description = describe(library, &topology, &model, None)?;
    Ok((description.encode(), model.name))
}

/// The answers that keep this machine's network cards and plugins out of the
/// described one, and the files that describe it. `node` is for the probe,
/// the others are what NCCL is told where the environment says nothing.
fn tell_node(spec: &mut Fields, node: &Path, topology: &Path) {
    spec.push("node", node.as_os_str().as_bytes());
    spec.push_assignment("substitute", b"NCCL_TOPO_FILE", topology.as_os_str().as_bytes());
    for answer in [
        "NCCL_IB_DISABLE=1",
        "NCCL_NET_PLUGIN=none",
        "NCCL_TUNER_PLUGIN=none",
        "NCCL_PROFILER_PLUGIN=none",
    ] {
        spec.push("substitute", answer);
    }
}

/// The specification of a probe that may be unable to read the run's files:
/// then it gets the same virtual node from a description of its own.
pub fn readable_here(spec: &Fields) -> Fields {
    let unreadable = spec.path("node").is_some_and(|path| File::open(path).is_err());
    let Some(library) = spec.path("library").filter(|_| unreadable) else { return spec.clone() };
    let mut own = Fields::default();
    match own_node(library) {
        Ok((node, topology)) => tell_node(&mut own, &node, &topology),
        Err(error) => {
            own.push("init-error", format!("no virtual node: {error:#}"));
        }
    }
    without(spec, "node", own)
}

/// The specification of a probe that cannot reach the driver, and so may be on
/// another machine: without the GPUs of this one. Another communicator would be
/// taken for one on them.
pub fn away(spec: &Fields) -> Fields {
    let mut own = Fields::default();
    if spec.first("visible").is_none() || spec.first(TRIAL).is_some() {
        return spec.clone();
    }
    own.push("init-error", "the GPUs of this run may be out of reach from here");
    without(spec, "visible", own)
}

/// All fields of another specification but one, behind `own`.
fn without(spec: &Fields, left_out: &str, mut own: Fields) -> Fields {
    for (key, value) in spec.iter().filter(|(key, _)| *key != left_out) {
        own.push(key, value);
    }
    own
}

fn own_node(library: &Path) -> Result<(PathBuf, PathBuf)> {
    let (description, _) = described(library)?;
    Ok((kept_open(description.as_bytes())?, kept_open(TOPOLOGY.as_bytes())?))
}

/// A file without a name, open until this process ends.
fn kept_open(text: &[u8]) -> Result<PathBuf> {
    let made = memfd_create("nccldiag-node", MFdFlags::MFD_CLOEXEC);
    let mut file = File::from(made.context("make a file without a name")?);
    file.write_all(text).context("write a file without a name")?;
    Ok(format!("/proc/self/fd/{}", file.into_raw_fd()).into())
}

#[cfg(test)]
#[path = "gpus_tests.rs"]
mod tests;
