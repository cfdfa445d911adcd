//! `nccldiag explain`: asks NCCL itself what it would choose on a described
//! machine. docs/explain.md is its manual.

use super::explain_asked::Asked;
use super::output::Destination;
use super::progress::{self, Status, say};
use crate::cli::{Explain as Arguments, Format};
use crate::exit::{Exit, UsageError};
use crate::model::Explain;
use crate::nccl::find::{Choice, Found, newer_fetched, resolve};
use crate::render::rows::{self, Listed};
use crate::render::{self, table::Look};
use crate::virtual_node::explain::{self, Question, Side};
use crate::virtual_node::machine::presets;
use crate::virtual_node::models::Model;
use crate::virtual_node::node::{NodeSpec, steers_the_log};
use crate::virtual_node::topology::Topology;
use anyhow::{Context, Result};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Runs the command.
///
/// # Errors
/// Wrong usage, no usable library or topology, or no virtual node.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    if arguments.list {
        return list(&arguments);
    }
    let asked = Asked::parse(&arguments)?;
    let to = Destination::open(&arguments.output)?;
    let question = question(&arguments, &asked)?;
    let status = Status::new();
    let result = explain::explain(&question, &|what| status.show(what));
    status.clear();
    let result = result?;
    to.write(|to, look| render(&result, arguments.output.format, look, to))?;
    Ok(match () {
        () if asked.fail_on.iter().any(|f| f.matches(&result)) => Exit::Findings.into(),
        () => Exit::Ran.into(),
    })
}

/// One line of `--list`.
#[derive(Serialize)]
struct Named {
    kind: &'static str,
    name: String,
    about: String,
}

impl Listed for Named {
    const SCHEMA: &'static str = "nccldiag/machines/1";
    const NOUN: &'static str = "presets";
    const COLUMNS: &'static [&'static str] = &["kind", "name", "about"];

    fn cells(&self) -> Vec<String> {
        vec![self.kind.into(), self.name.clone(), self.about.clone()]
    }
}

fn list(arguments: &Arguments) -> Result<ExitCode> {
    let topology = |preset: &presets::Preset| Named {
        kind: "topology",
        name: preset.name.into(),
        about: preset.about.into(),
    };
    let gpu = |model: Model| Named { kind: "gpu", name: model.key, about: model.name };
    let all: Vec<Named> =
        presets::all().iter().map(topology).chain(Model::all().map(gpu)).collect();
    let to = Destination::open(&arguments.output)?;
    to.write(|to, _| rows::write(&all, arguments.output.format, to))?;
    Ok(Exit::Ran.into())
}

fn question(arguments: &Arguments, asked: &Asked) -> Result<Question> {
    let library = library("--nccl", &arguments.nccl, &asked.nccl)?;
    let of = Machine { option: "--topology", parts: &arguments.topology, gpu: &arguments.gpu };
    let vs = match asked.compares(arguments) {
        false => None,
        true => {
            let other = match (&asked.vs_nccl, &arguments.vs_nccl) {
                (Some(choice), Some(text)) => self::library("--vs-nccl", text, choice)?,
                _ => Arc::clone(&library),
            };
            let machine = match arguments.vs_topology.is_empty() {
                true => of,
                false => Machine {
                    option: "--vs-topology",
                    parts: &arguments.vs_topology,
                    gpu: &arguments.vs_gpu,
                },
            };
            let variables = asked.vs.clone().unwrap_or_else(|| asked.variables.clone());
            Some(side(arguments, asked, machine, &other, variables)?)
        }
    };
    Ok(Question {
        side: side(arguments, asked, of, &library, asked.variables.clone())?,
        vs,
        asked: explain::Asked {
            sizes: asked.sizes.clone(),
            collectives: asked.collectives.clone(),
        },
        try_more: !arguments.once,
        newer: newer_fetched,
    })
}

/// A machine as it was named.
#[derive(Clone, Copy)]
struct Machine<'a> {
    option: &'static str,
    parts: &'a [OsString],
    gpu: &'a Option<String>,
}

fn side(
    arguments: &Arguments,
    asked: &Asked,
    machine: Machine,
    library: &Arc<Found>,
    variables: Vec<(OsString, OsString)>,
) -> Result<Side> {
    let (topology, model) =
        Topology::named(machine.parts, machine.gpu.as_deref()).with_context(|| machine.option)?;
    let mut notes = asked.notes.clone();
    notes.extend(topology.notes.iter().cloned());
    notes.extend(replaced(&topology, &variables)?);
    let mut spec = NodeSpec::new(library.path.clone(), topology, model)
        .context("find this program's own file")?;
    if let Some(gpus) = arguments.gpus.map(NonZero::get) {
        let there = spec.topology.gpus.len();
        if gpus > there {
            let text = format!("--gpus {gpus}: {} describes {there}", machine.option);
            return Err(UsageError(text).into());
        }
        spec.ranks = gpus;
    }
    spec.driver = asked.driver;
    spec.variables = variables;
    spec.conf_files = arguments.inherit_env;
    spec.host_network = arguments.host_network;
    spec.limit = asked.limit;
    let left_out = spec.overridden().into_iter().map(OsStr::to_string_lossy);
    notes.extend(left_out.map(|name| format!("{name} is left out: NCCL's log is read here")));
    if spec.ranks == 1 {
        notes.push("one GPU alone: NCCL copies, and there is nothing to choose".into());
    }
    spec.variables.retain(|(name, _)| !steers_the_log(name));
    Ok(Side { spec, library: Arc::clone(library), notes })
}

/// NCCL reads the user's own topology file instead; the GPUs stay those of
/// `--topology`.
///
/// # Errors
/// The file is no topology: NCCL would look at this machine instead.
fn replaced(
    topology: &Topology,
    variables: &[(OsString, OsString)],
) -> Result<Option<String>, UsageError> {
    let Some((_, file)) = variables.iter().find(|(name, _)| name == "NCCL_TOPO_FILE") else {
        return Ok(None);
    };
    let other = Topology::open(Path::new(file)).map_err(|error| {
        UsageError(format!("NCCL_TOPO_FILE: NCCL would look at this machine instead: {error}"))
    })?;
    let buses = |topology: &Topology| -> Vec<String> {
        topology.gpus.iter().map(|gpu| gpu.bus.clone()).collect()
    };
    let fits = match buses(&other) == buses(topology) {
        true => "has the same GPUs",
        false => "has GPUs at other addresses, so the answer is about neither machine",
    };
    Ok(Some(format!(
        "NCCL takes the topology from NCCL_TOPO_FILE={}, number and model of GPUs are those of \
         --topology; that file {fits}",
        file.display()
    )))
}

/// The library to ask; unlike `env-check`, there is no answer without one.
fn library(option: &str, text: &str, choice: &Choice) -> Result<Arc<Found>> {
    let never = AtomicBool::new(false);
    let found = resolve(choice, Some(Path::new("python3")), &mut progress::listener(&never))
        .with_context(|| format!("{option} {text}"))?;
    if *choice == Choice::Auto {
        say(&format!("NCCL: {} ({})", found.path.display(), found.how));
    }
    Ok(Arc::new(found))
}

fn render(result: &Explain, format: Format, look: Look, to: &mut dyn Write) -> Result<()> {
    match format {
        Format::Table => Ok(render::explain::table::write(result, look, to)?),
        Format::Json => Ok(render::json::write(result, to)?),
        Format::Csv => render::explain::csv::write(result, to),
        Format::Markdown => Ok(render::explain::markdown::write(result, to)?),
    }
}
