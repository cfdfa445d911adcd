//! A probe that may be far from its driver: in another namespace, under
//! another user, on another machine. It reads E, L and N of itself, with the
//! code that reads any process, and reports over the socket when that can be
//! reached, else as lines on stdout and in a file.

use super::{frame, gpus, observe};
use crate::model::Unreadable;
use crate::nccl::xray;
use crate::probes::session::{Session, call_nccl};
use crate::probes::wire::Fields;
use crate::process::{self, EnvBlock};
use anyhow::{Context, Result};
use std::io::Write;
use std::time::Duration;

/// Runs the probe whose specification is written in hexadecimal digits.
///
/// # Errors
/// The digits are damaged, or nobody can be told.
pub fn probe(hex: &[u8]) -> Result<()> {
    let bytes = frame::unhex(hex).context("the probe's argument is damaged")?;
    let spec = gpus::readable_here(&Fields::decode(&bytes));
    match Session::open(spec.clone()) {
        Ok(mut session) => {
            session.latch();
            session.report(&own_views(&spec))?;
            session.wait();
            session.leave();
            Ok(())
        }
        Err(_) => {
            end_in_time(&spec);
            tell(&gpus::away(&spec))
        }
    }
}

/// Without a socket nobody ends this process when NCCL hangs.
fn end_in_time(spec: &Fields) {
    let limit = spec.text("limit").and_then(|seconds| seconds.parse().ok());
    let limit = Duration::try_from_secs_f64(limit.unwrap_or(20.0)).unwrap_or(Duration::MAX);
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("nccldiag: the probe had not ended after {} s", limit.as_secs_f64());
        std::process::exit(4);
    });
}

/// Says everything in text. NCCL logs to stdout as well; the lines are framed.
fn tell(spec: &Fields) -> Result<()> {
    let called = call_nccl(spec);
    let mut report = own_views(spec);
    if let Some(called) = &called {
        report.extend(&called.fields());
    }
    let token = spec.text("token").context("the probe's argument has no token")?;
    let sender = sender();
    let text = frame::encode(token, &sender, &report);
    // Where the driver's folder is shared but its socket is not, a file gets
    // through even when the launcher swallows the output.
    if let Some(folder) = spec.path("folder") {
        let _ = std::fs::write(folder.join(format!("{sender}.report")), &text);
    }
    let mut out = std::io::stdout().lock();
    for line in text.lines() {
        // One write a line: pipes keep short writes whole.
        out.write_all(format!("{line}\n").as_bytes()).context("write the report to stdout")?;
    }
    out.flush().context("write the report to stdout")?;
    if let Some(called) = called {
        called.leave();
    }
    Ok(())
}

/// Differs between the ranks of one job, on one machine and on several.
fn sender() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host: String =
        host.to_string_lossy().chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |d| d.as_nanos());
    format!("{host}p{}t{nanos:x}", std::process::id())
}

fn own_views(spec: &Fields) -> Fields {
    let pid = std::process::id().cast_signed();
    let mut fields = Fields::default();
    fields.push("role", "probe");
    push_block(&mut fields, spec, "exec", process::exec_block(pid));
    push_block(&mut fields, spec, "live", process::live_environ(pid));
    if spec.first("library").is_some() {
        push_latched(&mut fields, spec, pid);
    }
    fields
}

/// Only the watched names: a report may end up in a job's log.
fn push_block(fields: &mut Fields, spec: &Fields, view: &str, block: Result<EnvBlock, Unreadable>) {
    match block {
        Err(why) => {
            fields.push(&format!("no-{view}"), why.to_string());
        }
        Ok(block) => {
            fields.push(&format!("has-{view}"), "1");
            for name in spec.all("name") {
                if let Some(value) = block.get(name) {
                    fields.push_assignment(view, name, value);
                }
            }
        }
    }
}

fn push_latched(fields: &mut Fields, spec: &Fields, pid: i32) {
    let readers = observe::Readers::new(spec.path("library"));
    let called = match readers.called(pid) {
        Ok(called) => called,
        Err(why) => {
            fields.push("no-latched", why.to_string());
            return;
        }
    };
    if spec.first("node").or(spec.first("visible")).is_some() {
        match readers.communicator(pid, &called) {
            Ok(one) => {
                fields.push("communicator", serde_json::to_vec(&one).unwrap_or_default());
            }
            Err(why) => {
                fields.push("no-communicator", why.to_string());
            }
        }
    }
    match xray::latched(pid, &called) {
        Err(why) => {
            fields.push("no-latched", why.to_string());
        }
        Ok(set) => {
            for name in spec.all("name").filter_map(|n| std::str::from_utf8(n).ok()) {
                let json = serde_json::to_vec(&set.get(name)).unwrap_or_default();
                fields.push_assignment("latched", name.as_bytes(), &json);
            }
        }
    }
}
