//! `explain`: what NCCL would choose on a described machine, as a user asks for
//! it. The real libnccl answers; the machine does not exist.

mod answers;
mod compare;
mod faults;
mod settings;
mod usage;

use crate::harness::{Ended, Sandbox, finish};
use nccldiag::model::{Explain, ExplainFinding, PredictedRange};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// `nccldiag explain` with this library.
fn asking<S: AsRef<OsStr>>(
    sandbox: &Sandbox,
    library: &Path,
    args: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = sandbox.program();
    command.arg("explain").arg("--nccl").arg(library).args(args);
    command
}

fn explain<S: AsRef<OsStr>>(library: &Path, args: impl IntoIterator<Item = S>) -> Ended {
    let sandbox = Sandbox::new();
    let ended = finish(&mut asking(&sandbox, library, args));
    sandbox.assert_nothing_left();
    ended
}

#[track_caller]
fn answer(ended: &Ended) -> Explain {
    serde_json::from_slice(&ended.exits(0).stdout)
        .unwrap_or_else(|error| panic!("no result: {error}\n{}\n{}", ended.out(), ended.err()))
}

#[track_caller]
fn ask(library: &Path, args: &[&str]) -> Explain {
    answer(&explain(library, args.iter().chain(&["--format", "json"])))
}

/// `Ring LL 8..1048576`
fn in_words(range: &PredictedRange) -> String {
    let name = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".into());
    format!("{} {} {}..{}", name(&range.algo), name(&range.proto), range.from, range.to)
}

fn ranges(result: &Explain) -> Vec<String> {
    result.prediction.ranges.iter().map(in_words).collect()
}

#[track_caller]
fn finding<'a>(result: &'a Explain, code: &str) -> &'a ExplainFinding {
    let found = result.findings.iter().find(|one| one.finding.code.number() == code);
    found.unwrap_or_else(|| panic!("no {code} among {:#?}", result.findings))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}
