//! E, L and N of 1000 running processes (500 CPython with libnccl loaded, 500
//! C) against `ps axeww` over the same processes in the same run.
//!
//! `cargo bench --bench views [-- LIBNCCL [PYTHON]]`; the library defaults to
//! the newest one in the cache. Prints medians and the ratio; writes nothing.

use nccldiag::model::Latched;
use nccldiag::nccl::cache::Cache;
use nccldiag::nccl::xray::{self, ImageCache};
use nccldiag::process::{self, live::Reader};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const EACH: usize = 500;
const ROUNDS: usize = 11;

const PYTHON_CHILD: &str = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); \
    l.ncclGetUniqueId(ctypes.create_string_buffer(128)); \
    print('ready', flush=True); sys.stdin.read()";

const C_CHILD: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
    int main(void) { char c; setenv(\"NCCL_BENCH\", \"1\", 1); puts(\"ready\"); \
    fflush(stdout); return (int) read(0, &c, 1); }\n";

fn main() {
    let args: Vec<PathBuf> =
        std::env::args_os().skip(1).filter(|a| a != "--bench").map(PathBuf::from).collect();
    let library = args.first().cloned().or_else(newest).expect("fetch a library first");
    let python = args.get(1).cloned().unwrap_or_else(|| "python3".into());
    let folder = tempfile::tempdir().expect("a temp folder");
    let program = compile(folder.path());
    let mut children = start(EACH, Command::new(&program).arg("x"));
    children.extend(start(EACH, Command::new(python).arg("-c").arg(PYTHON_CHILD).arg(&library)));
    let pids: Vec<i32> = children.iter().map(|c| c.id().cast_signed()).collect();

    let (mut ours, mut ps) = (Vec::new(), Vec::new());
    let mut seen = [0; 3];
    for _ in 0..ROUNDS {
        let mut times = [Duration::ZERO; 3];
        seen = read_all(&pids, &mut times);
        ours.push(times);
        ps.push(time_ps());
    }
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    let ps = median(ps);
    let total = median(ours.iter().map(|t| t.iter().sum()).collect());
    println!("library {}", library.display());
    println!("{} processes, medians of {ROUNDS} rounds", pids.len());
    for (view, name) in ["E", "L", "N"].into_iter().enumerate() {
        let time = median(ours.iter().map(|t| t[view]).collect());
        println!("{name:<10}{:>8.1} ms, read from {} processes", millis(time), seen[view]);
    }
    println!("E+L+N     {:>8.1} ms", millis(total));
    println!("ps axeww  {:>8.1} ms", millis(ps));
    println!("ratio     {:>8.2}", total.as_secs_f64() / ps.as_secs_f64());
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn newest() -> Option<PathBuf> {
    Cache::user().ok()?.list().ok()?.pop().map(|entry| entry.path)
}

fn compile(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("child.c"), folder.join("child"));
    std::fs::write(&source, C_CHILD).expect("write the C child");
    let status = Command::new("cc").arg("-o").arg(&program).arg(&source).status();
    assert!(status.expect("cc starts").success(), "the C child compiles");
    program
}

fn start(count: usize, command: &mut Command) -> Vec<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env("NCCL_GDRCOPY_ENABLE", "100001").env("NCCL_SOCKET_IFNAME", "lo");
    let mut children = Vec::new();
    // In small batches: all at once would only queue for two cores.
    while children.len() < count {
        let batch: Vec<Child> = (0..20.min(count - children.len()))
            .map(|_| command.spawn().expect("a child starts"))
            .collect();
        for mut child in batch {
            let mut line = String::new();
            let stdout = child.stdout.as_mut().expect("piped");
            BufReader::new(stdout).read_line(&mut line).expect("the child speaks");
            children.push(child);
        }
    }
    children
}

/// What inspecting any process does; counts how many views could be read and
/// adds up the time of each. The symbols of the library are parsed anew in each
/// round, once.
fn read_all(pids: &[i32], times: &mut [Duration; 3]) -> [usize; 3] {
    let (mut reader, images) = (Reader::new(), ImageCache::default());
    let mut seen = [0; 3];
    for &pid in pids {
        let readable: [&mut dyn FnMut() -> bool; 3] = [
            &mut || process::exec_block(pid).is_ok_and(|e| e.get("HOME").is_some()),
            &mut || reader.live(pid).is_ok_and(|l| l.block.get("HOME").is_some()),
            &mut || {
                let loaded = xray::loaded(pid, &images).unwrap_or_default();
                let set = loaded.first().and_then(|l| xray::latched(pid, l).ok());
                set.map(|s| s.get("NCCL_GDRCOPY_ENABLE")) == Some(Latched::Value(100_001))
            },
        ];
        for (view, read) in readable.into_iter().enumerate() {
            let begin = Instant::now();
            seen[view] += usize::from(read());
            times[view] += begin.elapsed();
        }
    }
    seen
}

fn time_ps() -> Duration {
    let begin = Instant::now();
    let output = Command::new("ps").arg("axeww").output().expect("ps starts");
    assert!(output.status.success() && output.stdout.len() > 1000);
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
