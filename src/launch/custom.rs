//! A launcher that the user names after `--`: `{probe}` in its command line is
//! replaced by a probe's command line. The probe may run in another namespace
//! or on another machine, so it carries what it has to know in its arguments
//! and reports over the socket, a file or its output, whichever gets through.

use super::driver::add_sighting;
use super::failure::with_tail;
use super::hub::Arrival;
use super::observe::Sighting;
use super::running::STRAGGLERS;
use super::{Driver, SHELL, Set, frame};
use crate::model::{Family, PathResult, Status};
use crate::probes::native::PROBE;
use crate::probes::wire::Fields;
use crate::process;
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// The id of the row that it gets.
const ID: &str = "custom";
const LAUNCH: &[Set] = &[SHELL];
/// The most output of a launcher that is searched for reports, in bytes.
const MAX_OUTPUT: u64 = 64 << 20;
/// Launchers that hand their words to a shell on the other side, so that a
/// probe's words need one more level of quoting.
const THROUGH_A_SHELL: [&str; 7] = ["ssh", "rsh", "autossh", "sshpass", "pdsh", "clush", "kubessh"];

/// The user's command line.
pub struct Custom {
    argv: Vec<OsString>,
}

/// The forms of a probe that a command line can ask for.
#[derive(Clone, Copy)]
enum Form {
    Native,
    Sh,
    Python,
}

const FORMS: [(&str, Form); 3] =
    [("{probe}", Form::Native), ("{probe-sh}", Form::Sh), ("{probe-py}", Form::Python)];

impl Custom {
    /// Checks that the command line has a place for the probe.
    ///
    /// # Errors
    /// It has none.
    pub fn new(argv: Vec<OsString>) -> Result<Self> {
        let text = argv.iter().map(|a| a.to_string_lossy());
        if !text.into_iter().any(|a| FORMS.iter().any(|(mark, _)| a.contains(mark))) {
            bail!(
                "the command after -- has no {{probe}}: write it where the program to start \
                 goes, such as: -- srun -n2 {{probe}}"
            );
        }
        Ok(Self { argv })
    }

    /// Runs it and observes every probe that it starts.
    pub fn run(&self, driver: &Driver) -> PathResult {
        let mut result = PathResult {
            id: ID.into(),
            family: Family::Custom,
            status: Status::Ran,
            reason: None,
            observations: Vec::new(),
        };
        match self.observe(driver) {
            Ok(sightings) => {
                for sighting in &sightings {
                    add_sighting(&mut result, sighting, LAUNCH, &driver.options.values);
                }
            }
            Err(error) => {
                result.status = Status::Failed;
                result.reason = Some(format!("{error:#}"));
            }
        }
        result
    }

    fn observe(&self, driver: &Driver) -> Result<Vec<Sighting>> {
        let number = driver.number();
        let folder = driver.folder.launch(number)?;
        let token = format!("{:08x}{number}", fresh_number());
        let mut spec = driver.spec(&number.to_string(), true);
        spec.push("token", &token).push("folder", folder.as_os_str().as_bytes());
        let argv = self.expand(driver, &spec, &token)?;
        let output = folder.join("output");
        let errors = folder.join("errors");
        let arrivals = driver.hub.expect(&number.to_string());
        let mut child = start(driver, &argv, &output, &errors)?;
        let deadline = Instant::now() + driver.options.limit;
        let mut sightings = Vec::new();
        let mut status = None;
        let mut patience = deadline;
        loop {
            match arrivals.recv_timeout(Duration::from_millis(5)) {
                Ok(probe) => sightings.push(see(driver, probe)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if status.is_some() && !sightings.is_empty() => {
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if driver.stopped() || Instant::now() > patience {
                break;
            }
            if status.is_none() {
                status = child.try_wait().context("wait for the launcher")?;
                let told = status.is_some() && !reports(&folder, &output, &token)?.is_empty();
                patience = patience.min(last_moment(status, told).unwrap_or(patience));
            }
        }
        driver.hub.forget(&number.to_string());
        if status.is_none() {
            process::end_tree(child.id());
            let _ = child.wait();
        }
        sightings.extend(reports(&folder, &output, &token)?.iter().map(Sighting::told));
        if sightings.is_empty() {
            return Err(with_tail(with_tail(no_report(status, driver), &output), &errors));
        }
        Ok(sightings)
    }

    /// The command line with the probe in its place. An argument that is only
    /// the mark becomes several arguments; inside a longer one, behind `-c`
    /// (`sh -c`, `su -c`) and for a remote shell the probe's words are quoted.
    fn expand(&self, driver: &Driver, spec: &Fields, token: &str) -> Result<Vec<OsString>> {
        let launcher = Path::new(&self.argv[0]).file_name().unwrap_or_default();
        let requote = THROUGH_A_SHELL.iter().any(|name| launcher == *name);
        let mut out: Vec<OsString> = Vec::new();
        for argument in &self.argv {
            let one_line = requote || out.last().is_some_and(|before| takes_a_line(before));
            let alone = FORMS.iter().find(|(mark, _)| argument == *mark);
            match alone {
                Some(&(_, form)) => {
                    let words = words(form, driver, spec, token)?;
                    if one_line {
                        out.push(OsString::from_vec(join(&words)?));
                    } else {
                        out.extend(words);
                    }
                }
                None => out.push(within(argument, driver, spec, token)?),
            }
        }
        Ok(out)
    }
}

/// How long to wait for a probe after its launcher ended; `None` while it runs.
/// A launcher that ended well may have put the probe into the background
/// (`tmux new-session -d`), unless a probe has told everything already.
fn last_moment(status: Option<std::process::ExitStatus>, told: bool) -> Option<Instant> {
    let grace = match status?.success() && !told {
        true => STRAGGLERS,
        false => Duration::ZERO,
    };
    Some(Instant::now() + grace)
}

/// `-c`, `-lc` and the like, behind which a shell expects a whole line.
fn takes_a_line(option: &OsStr) -> bool {
    let letters = option.as_bytes().strip_prefix(b"-").and_then(|rest| rest.strip_suffix(b"c"));
    letters.is_some_and(|rest| rest.iter().all(u8::is_ascii_lowercase))
}

fn within(argument: &OsStr, driver: &Driver, spec: &Fields, token: &str) -> Result<OsString> {
    let mut bytes = argument.as_bytes().to_vec();
    for (mark, form) in FORMS {
        while let Some(at) = memchr::memmem::find(&bytes, mark.as_bytes()) {
            let line = join(&words(form, driver, spec, token)?)?;
            bytes.splice(at..at + mark.len(), line);
        }
    }
    Ok(OsString::from_vec(bytes))
}

fn join(words: &[OsString]) -> Result<Vec<u8>> {
    let quoted = words.iter().map(|w| shlex::bytes::try_quote(w.as_bytes()));
    Ok(quoted.collect::<Result<Vec<_>, _>>()?.join(&b' '))
}

fn words(form: Form, driver: &Driver, spec: &Fields, token: &str) -> Result<Vec<OsString>> {
    let names = driver.options.values.names();
    Ok(match form {
        Form::Native => {
            let hex = frame::hex(&spec.encode());
            vec![driver.exe.clone().into(), PROBE.into(), format!("={hex}").into()]
        }
        Form::Sh => {
            let script = include_str!("../../probes/remote/probe.sh");
            let script = script.replacen("TOKEN", token, 1).replacen("NAMES", &names.join("|"), 1);
            vec!["sh".into(), "-c".into(), script.into()]
        }
        Form::Python => {
            let script = include_str!("../../probes/remote/probe.py");
            let script = script.replacen("@TOKEN@", token, 1);
            let script = script.replacen("@NAMES@", &names.join(","), 1);
            vec!["python3".into(), "-c".into(), script.into()]
        }
    })
}

/// The shell sets and exports the values, then starts the launcher, which
/// keeps our terminal: it may ask for a password.
fn start(
    driver: &Driver,
    argv: &[OsString],
    output: &Path,
    errors: &Path,
) -> Result<std::process::Child> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec \"$@\"", "sh"]).args(argv);
    command.env_clear().envs(driver.base_environment());
    for (name, value) in driver.options.values.of(SHELL) {
        command.env(name, OsString::from_vec(value));
    }
    let create = |p: &Path| File::create(p).with_context(|| format!("create {}", p.display()));
    command.stdin(Stdio::inherit()).stdout(create(output)?).stderr(create(errors)?);
    process::spawn(&mut command, false)
        .with_context(|| format!("start {}", Path::new(&argv[0]).display()))
}

fn see(driver: &Driver, probe: Arrival) -> Sighting {
    let sighting = Sighting::of(&probe, None, &driver.images);
    probe.release();
    sighting
}

/// Reports that came as files or in the launcher's output, each once.
fn reports(folder: &Path, output: &Path, token: &str) -> Result<Vec<Fields>> {
    let mut text = Vec::new();
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| format!("list {}", folder.display()))?
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension() == Some(OsStr::new("report")))
        .collect();
    files.sort();
    files.push(output.to_owned());
    for file in files {
        let opened = File::open(&file).with_context(|| format!("open {}", file.display()))?;
        opened.take(MAX_OUTPUT).read_to_end(&mut text).context("read a report")?;
        text.push(b'\n');
    }
    Ok(frame::decode(&text, token))
}

fn no_report(status: Option<std::process::ExitStatus>, driver: &Driver) -> anyhow::Error {
    match status {
        Some(status) => anyhow!("no probe reported; the launcher ended with {status}"),
        None if driver.stopped() => anyhow!("interrupted while it ran"),
        None => anyhow!(
            "no probe reported within {} s, so the launcher was ended (a longer --timeout may help)",
            driver.options.limit.as_secs_f64()
        ),
    }
}

/// Something that no earlier run's output can hold.
fn fresh_number() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    u32::try_from(hasher.finish() & 0xffff_ffff).unwrap_or_default()
}
