//! Whether two GPUs of this machine are free. Only `nvidia-smi` is asked, and
//! only where NVIDIA's driver is loaded.

use super::driver::find_tool;
use crate::process;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Is there when NVIDIA's driver is.
const CONTROL: &str = "/dev/nvidiactl";
/// A driver in trouble may answer never.
const LIMIT: Duration = Duration::from_secs(5);
/// Steers which GPUs a process sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// What was found.
pub(super) enum Free {
    /// Two that nobody uses, as `CUDA_VISIBLE_DEVICES` names them.
    Two(String),
    /// Not two, and why.
    No(String),
}

/// Looks for two free GPUs, unless which ones are seen is itself tested.
pub(super) fn find(limit: Duration, stop: &AtomicBool, watched: &[&str]) -> Free {
    if !Path::new(CONTROL).exists() {
        return Free::No("no GPU here".into());
    }
    if std::env::var_os(VISIBLE).is_some() {
        return Free::No(format!("{VISIBLE} is set here, so GPUs may belong to others"));
    }
    if watched.contains(&VISIBLE) {
        return Free::No(format!("{VISIBLE} is tested"));
    }
    let ask = |query: &str| {
        let program = find_tool("nvidia-smi").ok_or("there is no nvidia-smi in PATH")?;
        let mut command = Command::new(program);
        command.args([query, "--format=csv,noheader"]);
        let output = process::output(&mut command, limit.min(LIMIT), stop)
            .map_err(|error| format!("nvidia-smi {query}: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("nvidia-smi {query} ended with {}", output.status)),
        }
    };
    let answers = ask("--query-gpu=index,uuid")
        .and_then(|gpus| Ok((gpus, ask("--query-compute-apps=gpu_uuid,pid")?)));
    match answers {
        Ok((gpus, apps)) => decide(&gpus, &apps),
        Err(why) => Free::No(why),
    }
}

/// The first two GPUs that no process holds.
fn decide(gpus: &str, apps: &str) -> Free {
    let used: Vec<&str> = apps.lines().filter_map(|line| line.split(',').next()).collect();
    let all: Vec<&str> = gpus
        .lines()
        .filter_map(|line| line.split_once(',').map(|(_, uuid)| uuid.trim()))
        .filter(|uuid| uuid.starts_with("GPU-"))
        .collect();
    let free: Vec<&str> =
        all.iter().copied().filter(|uuid| !used.iter().any(|u| u.trim() == *uuid)).collect();
    match free[..] {
        [first, second, ..] => Free::Two(format!("{first},{second}")),
        _ => Free::No(format!("of {} GPUs here {} are free", all.len(), free.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(gpus: &str, apps: &str) -> String {
        match decide(gpus, apps) {
            Free::Two(visible) => visible,
            Free::No(why) => why,
        }
    }

    #[test]
    fn two_gpus_that_nobody_holds_are_taken() {
        let gpus = "0, GPU-a\n1, GPU-b\n2, GPU-c\n";
        assert_eq!(decided(gpus, ""), "GPU-a,GPU-b");
        assert_eq!(decided(gpus, "GPU-b, 4242\n"), "GPU-a,GPU-c");
        assert_eq!(decided(gpus, "GPU-b, 1\nGPU-a, 2\nGPU-a, 3\n"), "of 3 GPUs here 1 are free");
        assert_eq!(decided("0, GPU-a\n", ""), "of 1 GPUs here 1 are free");
    }

    #[test]
    fn what_is_no_list_is_no_gpu() {
        for text in ["", "No devices were found\n", "[Not Supported]\n", "0,\n,,\n"] {
            assert_eq!(decided(text, text), "of 0 GPUs here 0 are free");
        }
    }
}
