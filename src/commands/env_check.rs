//! `nccldiag env-check`: starts children along many launch paths and shows,
//! for each, what exec delivered (E), what is live (L) and what NCCL latched
//! (N). docs/env-check.md is its manual.

use super::{interrupt, output};
use crate::cli::{EnvCheck as Arguments, Format};
use crate::exit::{Exit, UsageError};
use crate::launch::{
    Context as FindingContext, Custom, Driver, LaunchPath, Options, Python, RunFolder, Values, all,
    find_tool, findings, remove_dead_runs,
};
use crate::model::{
    Code, EnvCheck, Family, Finding, NcclUsed, PathResult, SCHEMA, Status, Verdict,
};
use crate::nccl::find::{Choice, FindError, Found, resolve};
use crate::nccl::progress::{self, Event};
use crate::render::{
    self,
    rows::{self, Listed},
};
use anyhow::{Context, Result};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Runs the command.
///
/// # Errors
/// Wrong usage, no usable library though one was named, or no place for the
/// probes' files.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let paths = chosen(&arguments)?;
    if arguments.list {
        return list(&arguments, &paths);
    }
    let fail_on = parse_fail_on(&arguments.fail_on)?;
    let values = Values::new(parse_variables(&arguments.env)?);
    let limit = parse_timeout(arguments.timeout)?;
    let custom = match arguments.command.is_empty() {
        true => None,
        false => {
            let custom = Custom::new(arguments.command.clone());
            Some(custom.map_err(|error| UsageError(format!("{error:#}")))?)
        }
    };
    let mut remarks = remarks();
    let found = library(&arguments, &mut remarks)?;
    // Not before: a fetch is safe to be killed, and should be.
    let interrupted = interrupt::watch()?;
    let options = Options {
        library: found.as_ref().map(|f| f.path.clone()),
        python: python(&arguments.python, &paths, limit),
        values,
        limit,
        jobs: arguments.jobs.map_or_else(default_jobs, NonZero::get),
    };
    remove_dead_runs();
    let results = observe(&options, custom.as_ref(), &paths, &interrupted)?;
    let context = FindingContext { image: found.as_ref().map(|f| &f.image), paths: &paths };
    let mut all_findings = findings(&results, &context);
    all_findings.extend(remarks);
    let result = EnvCheck {
        schema: SCHEMA.into(),
        nccl: used(found.as_ref()),
        paths: results,
        findings: all_findings,
    };
    output::write(&arguments.output, |to, look| match arguments.output.format {
        Format::Table => Ok(render::table::write(&result, look, to)?),
        Format::Json => Ok(render::json::write(&result, to)?),
        Format::Csv => render::csv::write(&result, to),
        Format::Markdown => Ok(render::markdown::write(&result, to)?),
    })?;
    Ok(match interrupted.signal() {
        Some(signal) => ExitCode::from(128 + signal),
        None if fail_on.iter().any(|f| f.matches(&result)) => Exit::Findings.into(),
        None if all_failed(&result.paths) => Exit::CouldNotRun.into(),
        None => Exit::Ran.into(),
    })
}

/// Nothing was observed though something was tried.
fn all_failed(paths: &[PathResult]) -> bool {
    let has = |status: Status| paths.iter().any(|p| p.status == status);
    has(Status::Failed) && !has(Status::Ran)
}

/// The built-in paths that the arguments ask for; none beside a launcher of
/// the user's own, unless named.
fn chosen(arguments: &Arguments) -> Result<Vec<&'static LaunchPath>> {
    for id in &arguments.path {
        if !all().any(|p| p.id == id) {
            let near = all()
                .map(|p| p.id)
                .max_by(|a, b| strsim::jaro_winkler(a, id).total_cmp(&strsim::jaro_winkler(b, id)));
            let text = format!(
                "no launch path {id:?}; did you mean {}? (--list shows all)",
                near.unwrap_or_default()
            );
            return Err(UsageError(text).into());
        }
    }
    let families = arguments.family.iter().map(|name| {
        let known = Family::ALL.iter().filter(|f| **f != Family::Custom);
        name.parse::<Family>().ok().filter(|f| *f != Family::Custom).ok_or_else(|| {
            let known: Vec<_> = known.map(|f| f.word()).collect();
            UsageError(format!("no family {name:?}; there are {}", known.join(", ")))
        })
    });
    let families: Vec<Family> = families.collect::<Result<_, _>>()?;
    let everything =
        arguments.path.is_empty() && families.is_empty() && arguments.command.is_empty();
    let wanted = |p: &&LaunchPath| {
        everything || arguments.path.iter().any(|id| id == p.id) || families.contains(&p.family)
    };
    Ok(all().filter(wanted).collect())
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
    output::write(&arguments.output, |to, _| rows::write(&list, arguments.output.format, to))?;
    Ok(Exit::Ran.into())
}

/// One thing that `--fail-on` asks for.
enum FailOn {
    Any,
    Code(Code),
    Verdict(Verdict),
}

impl FailOn {
    fn matches(&self, result: &EnvCheck) -> bool {
        match self {
            Self::Any => !result.findings.is_empty(),
            Self::Code(code) => result.findings.iter().any(|f| f.code == *code),
            Self::Verdict(verdict) => {
                result.paths.iter().flat_map(|p| &p.observations).any(|o| o.verdict == *verdict)
            }
        }
    }
}

fn parse_fail_on(words: &[String]) -> Result<Vec<FailOn>> {
    let parse = |word: &String| {
        if word == "any" {
            return Ok(FailOn::Any);
        }
        let code = word.parse().map(FailOn::Code);
        code.or_else(|()| word.parse().map(FailOn::Verdict)).map_err(|()| {
            let text = format!(
                "--fail-on {word:?} is no code (ND0101), name (set-after-latched), verdict \
                 (never_delivered) or any; docs/findings.md lists them"
            );
            UsageError(text).into()
        })
    };
    words.iter().map(parse).collect()
}

fn parse_variables(given: &[OsString]) -> Result<Vec<(String, Vec<u8>)>> {
    let list: Vec<_> = given.iter().map(|text| parse_variable(text)).collect::<Result<_>>()?;
    for (index, (name, _)) in list.iter().enumerate() {
        if list[..index].iter().any(|(earlier, _)| earlier == name) {
            return Err(UsageError(format!("-e {name}: given twice")).into());
        }
    }
    Ok(list)
}

fn parse_variable(text: &OsStr) -> Result<(String, Vec<u8>)> {
    let bytes = text.as_bytes();
    let shown = render::escape(&text.to_string_lossy().chars().take(60).collect::<String>());
    let Some(at) = bytes.iter().position(|&b| b == b'=') else {
        return Err(UsageError(format!("-e {shown}: write NAME=VALUE")).into());
    };
    let name = String::from_utf8_lossy(&bytes[..at]).into_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(plain)
    {
        let text = format!("-e {shown}: a variable's name has only letters, digits and _");
        return Err(UsageError(text).into());
    }
    Ok((name, bytes[at + 1..].to_vec()))
}

fn parse_timeout(seconds: f64) -> Result<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(limit) if !limit.is_zero() && limit.as_secs() <= 86_400 => Ok(limit),
        _ => Err(UsageError(format!("--timeout {seconds}: write seconds, above 0")).into()),
    }
}

/// The library to load. With `auto` none is no error: E and L are still worth
/// knowing.
fn library(arguments: &Arguments, remarks: &mut Vec<Finding>) -> Result<Option<Found>> {
    let choice = Choice::parse(OsStr::new(&arguments.nccl))
        .map_err(|error| UsageError(format!("--nccl {}: {error}", arguments.nccl)))?;
    let python = Some(arguments.python.as_path());
    match resolve(&choice, python, &mut progress::on_stderr()) {
        Ok(found) => {
            announce(&choice, &found);
            if let Some(why) = found.image.no_params_reason() {
                remarks.push(unchecked(why, "use an official wheel: --nccl pip:2.27.7"));
            }
            Ok(Some(found))
        }
        Err(error @ FindError::NotFound { .. }) if choice == Choice::Auto => {
            remarks.push(unchecked(
                "no libnccl.so.2 was found, so what NCCL latches was not checked".into(),
                "fetch one with --nccl pip:2.27.7 (about 350 MB) or name one with --nccl PATH",
            ));
            progress::on_stderr()(Event::Note(&format!("N will not be checked: {error}")));
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("--nccl {}", arguments.nccl)),
    }
}

fn unchecked(message: String, fix: &str) -> Finding {
    let code = Code::NcclNotChecked;
    let (severity, fix) = (code.severity(), fix.into());
    Finding { code, severity, message, fix, places: Vec::new() }
}

/// With `auto`, says which library was taken and which others there are.
fn announce(choice: &Choice, found: &Found) {
    if *choice != Choice::Auto {
        return;
    }
    let mut say = progress::on_stderr();
    let text = |path: &Path| render::escape(&path.display().to_string());
    say(Event::Note(&format!("NCCL: {} ({})", text(&found.path), render::escape(&found.how))));
    for other in &found.others {
        let version = match &other.version {
            Ok(version) => version.to_string(),
            Err(why) => render::escape(why),
        };
        let how = render::escape(&other.how);
        say(Event::Note(&format!("also seen: {} ({how}): {version}", text(&other.path))));
    }
}

fn python(
    program: &Path,
    paths: &[&'static LaunchPath],
    limit: Duration,
) -> Result<Python, String> {
    if paths.iter().all(|p| p.needs.is_empty()) {
        return Err("no path needs Python".into());
    }
    if program.components().count() == 1 && find_tool(&program.to_string_lossy()).is_none() {
        return Err(format!("there is no {} in PATH (see --python)", program.display()));
    }
    Python::ask(program, limit).map_err(|error| format!("{error:#}"))
}

fn default_jobs() -> usize {
    2 * std::thread::available_parallelism().map_or(2, NonZero::get)
}

fn observe(
    options: &Options,
    custom: Option<&Custom>,
    paths: &[&'static LaunchPath],
    interrupted: &interrupt::Interrupted,
) -> Result<Vec<PathResult>> {
    let folder = RunFolder::create()?;
    for note in &folder.notes {
        progress::on_stderr()(Event::Note(note));
    }
    let driver = Driver::new(options, &folder, interrupted.flag())?;
    let steps = progress::Steps::on_stderr("launches");
    let mut results = driver.run(paths, &|total| steps.done_one_of(total));
    steps.clear();
    results.extend(custom.map(|c| c.run(&driver)));
    Ok(results)
}

fn used(found: Option<&Found>) -> NcclUsed {
    found.map_or_else(NcclUsed::default, |f| NcclUsed {
        path: Some(f.path.display().to_string()),
        version: Some(f.image.version.to_string()),
        symbols: f.image.symbols,
    })
}

/// What is worth knowing about this machine before anything is started.
fn remarks() -> Vec<Finding> {
    let mut list = Vec::new();
    let removed: Vec<String> = std::env::vars_os()
        .filter(|(name, _)| name.as_bytes().starts_with(b"NCCL_"))
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .collect();
    let mut add = |code: Code, message: String, fix: &str, places: Vec<String>| {
        let (severity, fix) = (code.severity(), fix.into());
        list.push(Finding { code, severity, message, fix, places });
    };
    if !removed.is_empty() {
        add(
            Code::RemovedFromTest,
            "these variables of your shell were removed before the test".into(),
            "give one with -e NAME=VALUE to test it",
            removed,
        );
    }
    let files: Vec<String> = conf_files().filter(|p| Path::new(p).exists()).collect();
    if !files.is_empty() {
        add(
            Code::ConfFilePresent,
            "NCCL may take settings from these files in every process; ~/.nccl.conf is kept out \
             of the test from NCCL 2.23 on, /etc/nccl.conf never"
                .into(),
            "look into them before you believe a default",
            files,
        );
    }
    list
}

/// The files that NCCL reads besides those of the test: the home directory is
/// that of the passwd entry up to 2.29.7.
fn conf_files() -> impl Iterator<Item = String> {
    let passwd = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let home = passwd.map(|user| user.dir.join(".nccl.conf").display().to_string());
    ["/etc/nccl.conf".to_owned()].into_iter().chain(home)
}
