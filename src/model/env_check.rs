//! The result of `env-check`, which is also its JSON
//! (`"schema": "nccldiag/env-check/1"`).

use super::{Code, Effect, EffectSource, Finding, Latched, Seen, words};
use serde::{Deserialize, Serialize};

/// The value of the `schema` field.
pub const SCHEMA: &str = "nccldiag/env-check/1";

words! {
    /// Where a variable is set.
    Place {
        /// Exported in the shell that starts everything.
        Shell = "shell",
        /// By the parent just before it starts the child.
        Parent = "parent",
        /// In the child itself.
        Child = "child",
        /// In a Python site file.
        Site = "site",
        /// In an nccl.conf file.
        Conf = "conf",
        /// By the launching call or tool itself: an envp list, a Makefile line.
        Launcher = "launcher",
    }
}

words! {
    /// What became of one setting.
    Verdict {
        /// In the exec block, live, and (where NCCL caches it) latched.
        Delivered = "delivered",
        /// Absent from the exec block, yet live: set inside the process.
        LiveOnly = "live_only",
        /// Live and right, but the exec block was destroyed by a process title.
        ExecOverwritten = "exec_overwritten",
        /// In the exec block; the live environ has another value or none.
        ChangedAfterExec = "changed_after_exec",
        /// Another setting on the same way won.
        Overwritten = "overwritten",
        /// Neither in the exec block nor live.
        NeverDelivered = "never_delivered",
        /// Live, but NCCL had latched another value before.
        SetAfterLatched = "set_after_latched",
        /// Only Python's mapping of the environment has it.
        MappingOnly = "mapping_only",
        /// NCCL made another number of the text.
        ParsedDifferently = "parsed_differently",
        /// Delivered, and this NCCL knows no such variable.
        UnknownVariable = "unknown_variable",
        /// A view that the verdict needs could not be read.
        CannotTell = "cannot_tell",
    }
}

words! {
    /// Whether a launch path was tried.
    Status {
        /// A probe was observed on every launch of this path.
        Ran = "ran",
        /// Not tried; the reason says why.
        Skipped = "skipped",
        /// Tried; no probe could be observed on at least one launch.
        Failed = "failed",
    }
}

words! {
    /// The groups that launch paths are shown in.
    Family {
        /// System calls and libc functions.
        Exec = "exec",
        /// Shells and common tools.
        Shell = "shell",
        /// Python's ways to start a process.
        Python = "python",
        /// Python files that run at start-up.
        Site = "site",
        /// NCCL's own conf files.
        Conf = "conf",
        /// The command that the user gave after `--`.
        Custom = "custom",
    }
}

/// The whole result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnvCheck {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The library that the probes loaded, if any.
    pub nccl: NcclUsed,
    /// On which GPUs the probes made their communicator.
    pub effect_source: EffectSource,
    /// One entry for each launch path asked for, in the order of the list.
    pub paths: Vec<PathResult>,
    /// What follows from them.
    pub findings: Vec<Finding>,
}

/// The library that the probes loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NcclUsed {
    /// Its file; absent when N was not checked.
    pub path: Option<String>,
    /// As its own banner has it: `2.27.7`.
    pub version: Option<String>,
    /// Whether the file has its symbol table; without it N is found by the
    /// shape of the code.
    pub symbols: bool,
}

/// What was seen on one launch path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathResult {
    /// The path's stable name.
    pub id: String,
    /// Its group.
    pub family: Family,
    /// Whether it was tried.
    pub status: Status,
    /// Why it was skipped or failed; when it ran, what NCCL itself complained
    /// about.
    pub reason: Option<String>,
    /// One for each place, variable and observed process.
    pub observations: Vec<Observation>,
}

/// One variable, set in one place, in one observed process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Its name.
    pub variable: String,
    /// Where it was set.
    pub set_in: Place,
    /// Which observed process of this path, from 0: observations with the same
    /// number are views of one process.
    pub process: usize,
    /// The value that was set there.
    pub expected: Seen,
    /// View E.
    pub exec: Seen,
    /// View L.
    pub live: Seen,
    /// View N.
    pub latched: Latched,
    /// What NCCL's last `getenv` of this name was answered.
    pub read: Seen,
    /// What NCCL made of it in a communicator; `None` where there was none, or
    /// nothing in a communicator is about this variable.
    pub effect: Option<Effect>,
    /// What became of it.
    pub verdict: Verdict,
    /// The finding that explains a verdict other than `delivered`.
    pub finding: Option<Code>,
}
