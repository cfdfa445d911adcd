//! Whether two GPUs of this machine are free: no process is listed on them, and
//! hardly any of their memory is in use. Only `nvidia-smi` is asked, and only
//! where NVIDIA's driver is loaded; what it does not answer is not free.

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

/// Each GPU: what it is called, used memory in MiB, whether it is split.
const GPUS: &str = "--query-gpu=index,uuid,memory.used,mig.mode.current";
/// The processes that hold GPUs. In a container it may lack those outside.
const PROCESSES: &str = "--query-compute-apps=gpu_uuid,pid";
/// What a GPU may have in use, in MiB, and still count as free. The recorded
/// report of a machine with eight idle RTX PRO 6000 has 0 MiB in use on each
/// (what the driver keeps for itself is counted apart there); other GPUs and
/// drivers show a few. A process with a CUDA context takes hundreds.
const IDLE_MIB: u64 = 100;

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
        command.args([query, "--format=csv,noheader,nounits"]);
        let output = process::output(&mut command, limit.min(LIMIT), stop)
            .map_err(|error| format!("nvidia-smi {query}: {error}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("nvidia-smi {query} ended with {}", output.status)),
        }
    };
    let answers = ask(GPUS).and_then(|gpus| Ok((gpus, ask(PROCESSES)?)));
    match answers {
        Ok((gpus, processes)) => decide(&gpus, &processes),
        Err(why) => Free::No(why),
    }
}

/// The first two GPUs that nobody uses, as far as both answers show.
fn decide(gpus: &str, processes: &str) -> Free {
    let holders = match holders(processes) {
        Ok(holders) => holders,
        Err(line) => return Free::No(format!("nvidia-smi {PROCESSES} answers {line:?}")),
    };
    let all: Vec<&str> = gpus.lines().filter(|line| !line.trim().is_empty()).collect();
    let mut free = Vec::new();
    let mut reasons = Vec::new();
    for line in &all {
        match unused(line, &holders) {
            Ok(uuid) => free.push(uuid),
            Err(why) => reasons.push(why),
        }
    }
    match free[..] {
        [first, second, ..] => Free::Two(format!("{first},{second}")),
        _ => {
            let counts = format!("of {} GPUs here {} are free", all.len(), free.len());
            let parts = std::iter::once(counts).chain(reasons);
            Free::No(parts.collect::<Vec<_>>().join("; "))
        }
    }
}

/// The GPUs of the processes that `nvidia-smi` lists, else the line that is
/// something else: then nothing is known about any GPU.
fn holders(processes: &str) -> Result<Vec<&str>, &str> {
    let lines = processes.lines().filter(|line| !line.trim().is_empty());
    let holder = |line| {
        let (uuid, _) = str::split_once(line, ',').filter(|(uuid, _)| is_uuid(uuid)).ok_or(line)?;
        Ok(uuid.trim())
    };
    lines.map(holder).collect()
}

/// The name of a GPU that nobody uses, else why it is not taken. `line` is one
/// of the answer to [`GPUS`].
fn unused<'l>(line: &'l str, holders: &[&str]) -> Result<&'l str, String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, uuid, used, mig] = fields[..] else {
        return Err(format!("nvidia-smi {GPUS} answers {line:?}"));
    };
    if !is_uuid(uuid) {
        return Err(format!("nvidia-smi gives no UUID of GPU {index}: {uuid:?}"));
    }
    if mig == "Enabled" {
        return Err(format!("GPU {index} is split by MIG"));
    }
    if holders.contains(&uuid) {
        return Err(format!("a process uses GPU {index}"));
    }
    match used.parse::<u64>() {
        Ok(used) if used <= IDLE_MIB => Ok(uuid),
        Ok(used) => Err(format!("{used} MiB of GPU {index} are in use")),
        Err(_) => Err(format!("how much memory of GPU {index} is in use is not known: {used}")),
    }
}

fn is_uuid(text: &str) -> bool {
    text.trim().starts_with("GPU-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(gpus: &str, processes: &str) -> String {
        match decide(gpus, processes) {
            Free::Two(visible) => visible,
            Free::No(why) => why,
        }
    }

    #[test]
    fn two_gpus_that_nobody_holds_are_taken() {
        let gpus = "0, GPU-a, 0, Disabled\n1, GPU-b, 4, [N/A]\n2, GPU-c, 100, Disabled\n";
        assert_eq!(decided(gpus, ""), "GPU-a,GPU-b");
        assert_eq!(decided(gpus, "GPU-b, 4242\n"), "GPU-a,GPU-c");
        assert_eq!(
            decided(gpus, "GPU-b, 1\nGPU-a, 2\nGPU-a, 3\n"),
            "of 3 GPUs here 1 are free; a process uses GPU 0; a process uses GPU 1"
        );
        assert_eq!(decided("0, GPU-a, 0, Disabled\n", ""), "of 1 GPUs here 1 are free");
    }

    /// In a container the list of processes may lack those of others.
    #[test]
    fn a_gpu_of_which_memory_is_used_is_not_free() {
        for (fields, why) in [
            ("101, Disabled", "101 MiB of GPU 1 are in use"),
            ("81229, [N/A]", "81229 MiB of GPU 1 are in use"),
            ("[N/A], Disabled", "how much memory of GPU 1 is in use is not known: [N/A]"),
            ("[Not Supported], Disabled", "is not known: [Not Supported]"),
            ("[Unknown Error], Disabled", "is not known: [Unknown Error]"),
            ("[GPU is lost], [GPU is lost]", "is not known: [GPU is lost]"),
            ("-1, Disabled", "is not known: -1"),
            ("0, Enabled", "GPU 1 is split by MIG"),
            ("0", "answers \"1, GPU-b, 0\""),
        ] {
            let gpus = format!("0, GPU-a, 0, Disabled\n1, GPU-b, {fields}\n");
            let said = decided(&gpus, "");
            assert!(said.starts_with("of 2 GPUs here 1 are free; "), "{said}");
            assert!(said.ends_with(why), "{fields}: {said}");
            let more = format!("{gpus}2, GPU-c, 0, Disabled\n");
            assert_eq!(decided(&more, ""), "GPU-a,GPU-c", "{fields}");
        }
        let nameless = decided("0, [N/A], 0, Disabled\n", "");
        assert!(nameless.ends_with("no UUID of GPU 0: \"[N/A]\""), "{nameless}");
    }

    #[test]
    fn without_a_list_of_processes_no_gpu_is_free() {
        let gpus = "0, GPU-a, 0, Disabled\n1, GPU-b, 0, Disabled\n";
        for answer in ["[Not Supported]\n", "[N/A], [N/A]\n", "GPU-a\n", "GPU-a, 7\nerror\n"] {
            let said = decided(gpus, answer);
            assert!(said.starts_with("nvidia-smi --query-compute-apps"), "{answer}: {said}");
        }
        assert_eq!(decided("", ""), "of 0 GPUs here 0 are free");
        let said = decided("No devices were found\n", "");
        assert!(said.contains("answers \"No devices were found\""), "{said}");
    }
}
