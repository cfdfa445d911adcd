//! When NCCL reads a variable: once for the life of a process, or again for
//! each communicator. Nothing here reads a library.

use super::image::NcclVersion;

/// How long a value holds that NCCL has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Until the process ends: NCCL keeps what it read first.
    Process,
    /// Until the communicator is destroyed: each init reads it again.
    Communicator,
}

/// The variables that each communicator init reads again, and the function
/// that calls `getenv` for them: the same in the public sources of 2.18.3 to
/// 2.30.7 (and, by the tests here, in the libraries of 2.31.2 and 2.32.3).
const EACH_INIT: [(&str, &str); 8] = [
    ("NCCL_ALGO", "ncclTopoTuneModel"),
    ("NCCL_PROTO", "ncclTopoTuneModel"),
    ("NCCL_THREAD_THRESHOLDS", "ncclTopoTuneModel"),
    ("NCCL_TOPO_FILE", "ncclTopoGetSystem"),
    ("NCCL_TOPO_DUMP_FILE", "ncclTopoGetSystem, later initTransportsRank"),
    ("NCCL_GRAPH_FILE", "ncclTopoCompute"),
    ("NCCL_GRAPH_DUMP_FILE", "ncclTopoDumpGraphs"),
    (COLLNET, "initTransportsRank, later the override of ncclConfig_t"),
];

const COLLNET: &str = "NCCL_COLLNET_ENABLE";

/// How long a value of `variable` holds. What is not known to be read again
/// counts as kept by the process: to start new ranks for it is never wrong,
/// only slower. `NCCL_NO_CACHE` (2.29.7 and newer) is not looked at.
pub fn of(variable: &str, version: NcclVersion) -> Scope {
    // An integer parameter there, and those are kept.
    let kept = variable == COLLNET
        && (version.major, version.minor) == (2, 27)
        && (3..=4).contains(&version.patch);
    let again = EACH_INIT.iter().any(|(name, _)| *name == variable);
    if again && !kept { Scope::Communicator } else { Scope::Process }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_listed_is_kept() {
        let version = |patch| NcclVersion { major: 2, minor: 27, patch };
        assert_eq!(of("NCCL_ALGO", version(3)), Scope::Communicator);
        assert_eq!(of("NCCL_BUFFSIZE", version(7)), Scope::Process);
        assert_eq!(of("NCCL_SOMETHING_NEW", version(7)), Scope::Process);
        assert_eq!(of(COLLNET, version(4)), Scope::Process);
        assert_eq!(of(COLLNET, version(5)), Scope::Communicator);
    }
}
