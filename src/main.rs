//! Parses the command line, dispatches, and turns the result into an exit code.

use clap::Parser;
use nccldiag::cli::{Cli, Command};
use nccldiag::commands;
use nccldiag::exit::{Exit, UsageError};
use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let words: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
    if let Some(result) = commands::hidden::run(&words) {
        return report(result.map(|()| ExitCode::SUCCESS));
    }
    let result = match Cli::parse().command {
        Command::EnvCheck(options) => commands::env_check::run(*options),
        Command::Explain(options) => commands::explain::run(*options),
        Command::Cache(options) => commands::cache::run(options),
    };
    report(result)
}

/// Errors go to stderr with their causes.
fn report(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    // Nobody is left to be told when stderr is closed as well.
    let text = nccldiag::render::escape_lines(&format!("{error:#}"));
    let _ = writeln!(anstream::stderr(), "nccldiag: {text}");
    match error.downcast_ref::<UsageError>() {
        Some(_) => Exit::Usage.into(),
        None => Exit::CouldNotRun.into(),
    }
}
