//! One started launch: its folder, specification and first process, the wait
//! for its probe, and its end.

use super::driver::{Driver, Interrupted};
use super::failure::with_tail;
use super::hub::Arrival;
use super::observe::Sighting;
use super::{CHILD, LAUNCHER, LaunchPath, PARENT, SECOND_LAUNCHER, SHELL, Set, Stage, Top};
use crate::probes::session::SPEC;
use crate::process;
use anyhow::{Context, Result, anyhow, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a probe may still take to report after the first process ended
/// well: it may have been put into the background.
pub(super) const STRAGGLERS: Duration = Duration::from_secs(2);
/// The same after the first process failed.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// How often a waiting launch looks at its first process and at a signal.
const TICK: Duration = Duration::from_millis(5);

/// A started launch. Dropping it ends whatever is left of it.
pub(super) struct Running<'a> {
    driver: &'a Driver<'a>,
    name: String,
    output: PathBuf,
    arrivals: Receiver<Arrival>,
    child: Child,
    deadline: Instant,
}

impl<'a> Running<'a> {
    /// Writes the files of a launch and starts its first process.
    ///
    /// # Errors
    /// The file system or the system call refuses.
    pub(super) fn prepare(
        driver: &'a Driver<'a>,
        path: &'static LaunchPath,
        launch: &'static [Set],
    ) -> Result<Self> {
        let number = driver.number();
        let folder = driver.folder.launch(number)?;
        let stage = Stage {
            id: path.id,
            folder: &folder,
            home: folder.join("home"),
            exe: &driver.exe,
            python: driver.options.python.as_ref().ok(),
            script: driver.folder.script(),
            values: &driver.options.values,
            launch,
            limit: driver.options.limit,
            stop: driver.stop,
        };
        let top = (path.start)(&stage)?;
        let name = number.to_string();
        write_spec(driver, &stage, &top, &name)?;
        let output = folder.join("output");
        let mut command = first_process(driver, &stage, &top, &output)?;
        let arrivals = driver.hub.expect(&name);
        let deadline = Instant::now() + driver.options.limit;
        let child = process::spawn(&mut command, true)
            .with_context(|| format!("start {}", Path::new(command.get_program()).display()))?;
        Ok(Self { driver, name, output, arrivals, child, deadline })
    }

    /// Waits for the probe, observes it and lets it go.
    ///
    /// # Errors
    /// No probe reported, or the run was interrupted.
    pub(super) fn sighting(mut self) -> Result<Sighting> {
        let mut parent = None;
        let mut ended: Option<(ExitStatus, Instant)> = None;
        loop {
            match self.arrivals.recv_timeout(TICK) {
                Ok(arrival) if arrival.fields.text("role") == Some("parent") => {
                    parent = Some(arrival);
                }
                Ok(arrival) => {
                    let sighting = Sighting::of(&arrival, parent.as_ref(), &self.driver.readers);
                    arrival.release();
                    return sighting.map_err(|why| anyhow!(why));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the driver's socket is gone"),
            }
            if self.driver.stopped() {
                return Err(Interrupted("interrupted while it ran").into());
            }
            if ended.is_none() {
                let status = self.child.try_wait().context("wait for the first process")?;
                ended = status.map(|status| (status, Instant::now()));
            }
            self.give_up(ended)?;
        }
    }

    /// An error once there is no hope that a probe reports.
    fn give_up(&self, ended: Option<(ExitStatus, Instant)>) -> Result<()> {
        if let Some((status, since)) = ended {
            let grace = if status.success() { STRAGGLERS } else { AFTER_FAILURE };
            if since.elapsed() > grace {
                let error = anyhow!("no probe reported; the first process ended with {status}");
                return Err(with_tail(error, &self.output));
            }
        }
        if Instant::now() > self.deadline {
            let limit = self.driver.options.limit.as_secs_f64();
            return Err(with_tail(
                anyhow!("no probe reported within {limit} s, so it was ended"),
                &self.output,
            ));
        }
        Ok(())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Late probes of this launch are turned away, which ends them.
        self.driver.hub.forget(&self.name);
        let grace = if self.driver.stopped() { Duration::ZERO } else { STRAGGLERS };
        let until = self.deadline.min(Instant::now() + grace);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(process::POLL);
        }
        process::end_tree(&mut self.child, STRAGGLERS);
    }
}

fn write_spec(driver: &Driver, stage: &Stage, top: &Top, name: &str) -> Result<()> {
    let mut spec = driver.spec(name, top.hide_home_conf);
    let keys =
        [("parent", PARENT), ("child", CHILD), ("listed", LAUNCHER), ("listed", SECOND_LAUNCHER)];
    for (key, set) in keys {
        for (variable, value) in stage.sets(set) {
            spec.push_assignment(key, variable.as_bytes(), &value);
        }
    }
    let path = stage.folder.join(SPEC);
    fs::write(&path, spec.encode()).with_context(|| format!("write {}", path.display()))
}

/// The command that starts everything: a shell that exports its values when
/// this launch has the shell set some.
fn first_process(driver: &Driver, stage: &Stage, top: &Top, output: &Path) -> Result<Command> {
    let script = stage.folder.join("shell.sh");
    let text = shell_script(stage, top)?;
    fs::write(&script, text).with_context(|| format!("write {}", script.display()))?;
    let mut command = Command::new("/bin/sh");
    command.arg(&script).args(&top.argv);
    command.env_clear().envs(driver.base_environment());
    command.env("HOME", &stage.home).env("TMPDIR", stage.folder);
    command.envs(top.env.iter().map(|(name, value)| (name, value)));
    command.current_dir(top.cwd.as_deref().unwrap_or(stage.folder));
    let file = File::create(output).with_context(|| format!("create {}", output.display()))?;
    let both = file.try_clone().context("share the output file")?;
    command.stdin(Stdio::null()).stdout(file).stderr(both);
    Ok(command)
}

fn shell_script(stage: &Stage, top: &Top) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for (name, value) in stage.sets(SHELL) {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(&shlex::bytes::try_quote(&value)?);
        text.push(b'\n');
        if top.export {
            text.extend_from_slice(format!("export {name}\n").as_bytes());
        }
    }
    text.extend_from_slice(top.script.as_bytes());
    Ok(text)
}
