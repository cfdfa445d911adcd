//! `nccldiag env-check`: starts children along many launch paths and shows,
//! for each, what exec delivered (E), what is live (L), what NCCL latched (N)
//! and the effect on a communicator. docs/env-check.md is its manual.

use super::asked::Asked;
use super::interrupt::{self, Interrupted};
use super::output::Destination;
use super::progress::{self, Steps, say};
use crate::cli::{EnvCheck as Arguments, Format};
use crate::exit::Exit;
use crate::launch::{
    Context as FindingContext, Driver, Gpus, LaunchPath, Options, Python, RunFolder, Trial,
    findings, remarks, remove_dead_runs,
};
use crate::model::{
    Code, EnvCheck, Family, Finding, NcclUsed, PathResult, Provenance, SCHEMA, Status,
};
use crate::nccl::find::{Choice, FindError, Found, resolve};
use crate::render::rows::{self, Listed};
use crate::render::{self, table::Look};
use anyhow::{Context, Result};
use serde::Serialize;
use std::io::Write;
use std::num::NonZero;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// Wrong usage, no usable library though one was named, or no place for the
/// probes' files.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let asked = Asked::parse(&arguments)?;
    if arguments.list {
        return list(&arguments, &asked.paths);
    }
    let to = Destination::open(&arguments.output)?;
    let interrupted = interrupt::watch()?;
    match check(&arguments, asked, &interrupted, to) {
        // Whatever went wrong, that is why.
        Err(error) if interrupted.signal().is_some() => {
            say(&format!("nccldiag: {error:#}"));
            Ok(interrupted.exit_code())
        }
        other => other,
    }
}

fn check(
    arguments: &Arguments,
    asked: Asked,
    interrupted: &Interrupted,
    to: Destination,
) -> Result<ExitCode> {
    let mut remarks = remarks();
    let found = library(arguments, &asked.nccl, interrupted, &mut remarks)?;
    let python = Python::needed(&arguments.python, &asked.paths, asked.limit, interrupted.flag());
    let options = Options {
        library: found.as_ref().map(|f| f.path.clone()),
        python,
        values: asked.values.clone(),
        limit: asked.limit,
        jobs: arguments.jobs.map_or_else(default_jobs, NonZero::get),
    };
    let (gpus, paths) = observe(&options, &asked, arguments.light, interrupted)?;
    remarks.extend(gpus.problem.as_deref().map(no_effect));
    let context = FindingContext {
        image: found.as_ref().map(|f| &f.image),
        paths: &asked.paths,
        communicator: gpus.source.provenance != Provenance::None,
        no_communicator: gpus.source.provenance == Provenance::None && gpus.problem.is_some(),
    };
    let mut findings = findings(&paths, &context);
    findings.extend(remarks);
    let nccl = used(found.as_ref());
    let result =
        EnvCheck { schema: SCHEMA.into(), nccl, effect_source: gpus.source, paths, findings };
    let code = match () {
        () if interrupted.signal().is_some() => interrupted.exit_code(),
        () if asked.fail_on.iter().any(|f| f.matches(&result)) => Exit::Findings.into(),
        () if nothing_seen(&result.paths) => Exit::CouldNotRun.into(),
        () => Exit::Ran.into(),
    };
    interrupted.stop_watching();
    to.write(|to, look| render(&result, arguments.output.format, look, to))?;
    Ok(code)
}

/// Tries all paths; when it returns, nothing of them is left.
fn observe(
    options: &Options,
    asked: &Asked,
    light: bool,
    interrupted: &Interrupted,
) -> Result<(Gpus, Vec<PathResult>)> {
    remove_dead_runs();
    let folder = RunFolder::create()?;
    folder.notes.iter().for_each(|note| say(note));
    let gpus = gpus(options, &folder, light, interrupted);
    let driver = Driver::new(options, &folder, &gpus, interrupted.flag())?;
    let steps = Steps::new("launches");
    let mut paths = driver.run(&asked.paths, &|total| steps.done_one_of(total));
    steps.clear();
    paths.extend(asked.custom.as_ref().map(|custom| custom.run(&driver)));
    drop(driver);
    Ok((gpus, paths))
}

/// On which GPUs the probes are to make a communicator.
fn gpus(options: &Options, folder: &RunFolder, light: bool, interrupted: &Interrupted) -> Gpus {
    let Some(library) = &options.library else { return Gpus::unwanted("NCCL was not called") };
    if light {
        return Gpus::unwanted("--light makes no communicator");
    }
    let (limit, stop) = (options.limit, interrupted.flag());
    Gpus::find(&Trial { library, folder, limit, stop }, &options.values.names())
}

/// The remark that no effect was seen.
fn no_effect(why: &str) -> Finding {
    let message = format!("no effect could be seen: {why}");
    let fix = "use an official wheel (--nccl pip:2.27.7) on x86-64; with --light nobody looks";
    Finding::new(Code::EffectNotChecked, message, fix, Vec::new())
}

fn render(result: &EnvCheck, format: Format, look: Look, to: &mut dyn Write) -> Result<()> {
    match format {
        Format::Table => Ok(render::table::write(result, look, to)?),
        Format::Json => Ok(render::json::write(result, to)?),
        Format::Csv => render::csv::write(result, to),
        Format::Markdown => Ok(render::markdown::write(result, to)?),
    }
}

/// Every path was skipped, or failed without an observation.
fn nothing_seen(paths: &[PathResult]) -> bool {
    paths.iter().all(|p| p.status != Status::Ran && p.observations.is_empty())
}

/// One line of `--list`.
#[derive(Serialize)]
struct ListedPath {
    id: &'static str,
    family: Family,
    about: &'static str,
}

impl Listed for ListedPath {
    const SCHEMA: &'static str = "nccldiag/launch-paths/1";
    const NOUN: &'static str = "launch paths";
    const COLUMNS: &'static [&'static str] = &["id", "family", "about"];

    fn cells(&self) -> Vec<String> {
        vec![self.id.into(), self.family.word().into(), self.about.into()]
    }
}

fn list(arguments: &Arguments, paths: &[&'static LaunchPath]) -> Result<ExitCode> {
    let list: Vec<ListedPath> =
        paths.iter().map(|p| ListedPath { id: p.id, family: p.family, about: p.about }).collect();
    let to = Destination::open(&arguments.output)?;
    to.write(|to, _| rows::write(&list, arguments.output.format, to))?;
    Ok(Exit::Ran.into())
}

/// The library to load. With `auto` none is no error: E and L are still worth
/// knowing.
fn library(
    arguments: &Arguments,
    choice: &Choice,
    interrupted: &Interrupted,
    remarks: &mut Vec<Finding>,
) -> Result<Option<Found>> {
    let mut listener = progress::listener(interrupted.flag());
    match resolve(choice, Some(&arguments.python), &mut listener) {
        Ok(found) => {
            announce(choice, &found);
            if let Some(why) = found.image.no_params_reason() {
                remarks.push(unchecked(why, "use an official wheel: --nccl pip:2.27.7"));
            }
            Ok(Some(found))
        }
        Err(error @ (FindError::NotFound { .. } | FindError::NoneUsable { .. }))
            if *choice == Choice::Auto =>
        {
            let text = "no usable libnccl.so.2 was found, so what NCCL latches was not checked";
            let fix =
                "fetch one with --nccl pip:2.27.7 (about 350 MB) or name one with --nccl PATH";
            remarks.push(unchecked(text.into(), fix));
            say(&format!("N will not be checked: {error}"));
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("--nccl {}", arguments.nccl)),
    }
}

fn unchecked(message: String, fix: &str) -> Finding {
    Finding::new(Code::NcclNotChecked, message, fix, Vec::new())
}

/// With `auto`, says which library was taken and which others there are.
fn announce(choice: &Choice, found: &Found) {
    if *choice != Choice::Auto {
        return;
    }
    say(&format!("NCCL: {} ({})", found.path.display(), found.how));
    for other in &found.others {
        let version = match &other.version {
            Ok(version) => version.to_string(),
            Err(why) => why.clone(),
        };
        say(&format!("also seen: {} ({}): {version}", other.path.display(), other.how));
    }
}

fn default_jobs() -> usize {
    2 * std::thread::available_parallelism().map_or(2, NonZero::get)
}

fn used(found: Option<&Found>) -> NcclUsed {
    found.map_or_else(NcclUsed::default, |f| NcclUsed {
        path: Some(f.path.display().to_string()),
        version: Some(f.image.version.to_string()),
        symbols: f.image.symbols,
    })
}
