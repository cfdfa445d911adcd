//! What the arguments of `explain` ask for, checked: everything that can be
//! wrong usage is found here, before anything is started.

use super::{given, sizes};
use crate::cli::Explain as Arguments;
use crate::exit::UsageError;
use crate::model::{Code, Explain};
use crate::nccl::collective::{Collective, UnknownCollective};
use crate::nccl::find::Choice;
use crate::nccl::surroundings;
use anyhow::Result;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

/// Variables by name, in the order in which they were given.
pub type Variables = Vec<(OsString, OsString)>;

/// The checked arguments.
pub struct Asked {
    /// What was left out of the caller's own settings.
    pub notes: Vec<String>,
    /// What the ranks get.
    pub variables: Variables,
    /// What the other side gets instead.
    pub vs: Option<Variables>,
    /// Sizes in bytes.
    pub sizes: Vec<u64>,
    /// Which collectives, each once.
    pub collectives: Vec<Collective>,
    /// The library to ask.
    pub nccl: Choice,
    /// The other side's.
    pub vs_nccl: Option<Choice>,
    /// Such as 12040.
    pub driver: Option<i32>,
    /// The longest time for one run.
    pub limit: Duration,
    /// What makes the exit code 1.
    pub fail_on: Vec<FailOn>,
}

impl Asked {
    /// Checks the arguments.
    ///
    /// # Errors
    /// A [`UsageError`] that names the argument.
    pub fn parse(arguments: &Arguments) -> Result<Self> {
        let (mut variables, mut notes) = (Variables::new(), Vec::new());
        if arguments.inherit_env {
            variables = inherited(arguments.host_network, &mut notes);
        }
        for (name, value) in given::variables("-e", &arguments.env)? {
            check("-e", &name)?;
            put(&mut variables, &name, &value);
        }
        let vs = arguments.vs.as_deref().map(|text| changed(&variables, text)).transpose()?;
        Ok(Self {
            notes,
            variables,
            vs,
            sizes: sizes::parse(&arguments.sizes)?,
            collectives: collectives(&arguments.collective)?,
            nccl: given::library("--nccl", &arguments.nccl)?,
            vs_nccl: arguments
                .vs_nccl
                .as_deref()
                .map(|text| given::library("--vs-nccl", text))
                .transpose()?,
            driver: arguments.driver.as_deref().map(driver).transpose()?,
            limit: given::timeout(arguments.timeout)?,
            fail_on: parse_fail_on(&arguments.fail_on)?,
        })
    }

    /// Whether there is another side.
    pub fn compares(&self, arguments: &Arguments) -> bool {
        self.vs.is_some() || self.vs_nccl.is_some() || !arguments.vs_topology.is_empty()
    }
}

/// Names the rendezvous of a real job: a rank would connect there.
const RENDEZVOUS: &str = "NCCL_COMM_ID";

/// The caller's own `NCCL_*` that say something about a described machine: those
/// that are about this one or its job are left out, with a note.
fn inherited(network: bool, notes: &mut Vec<String>) -> Variables {
    let mut all = Variables::new();
    for (name, value) in surroundings::settings() {
        match of_this_machine(name.as_bytes()) {
            Some(why) if !network || why != CARDS => {
                notes.push(format!("{} is left out: {why}", name.to_string_lossy()));
            }
            _ => all.push((name, value)),
        }
    }
    all.sort();
    notes.sort();
    all
}

const CARDS: &str = "it chooses network cards of this machine (--host-network lets it)";

/// Why a variable says nothing about a described machine.
fn of_this_machine(name: &[u8]) -> Option<&'static str> {
    match name {
        b"NCCL_COMM_ID" => Some("it names the rendezvous of a real job"),
        b"NCCL_TOPO_FILE" => Some("the machine is the one of --topology"),
        b"NCCL_HOSTID" | b"NCCL_RAS_ADDR" | b"NCCL_TOPO_DUMP_FILE" | b"NCCL_GRAPH_DUMP_FILE" => {
            Some("it is about this machine's own jobs")
        }
        b"NCCL_NET" | b"NCCL_NET_PLUGIN" | b"NCCL_SOCKET_IFNAME" | b"NCCL_SOCKET_FAMILY" => {
            Some(CARDS)
        }
        name if name.starts_with(b"NCCL_IB_") => Some(CARDS),
        _ => None,
    }
}

/// # Errors
/// The variable would lead the ranks to a real job.
fn check(option: &str, name: &str) -> Result<(), UsageError> {
    match name == RENDEZVOUS {
        true => Err(UsageError(format!("{option} {name}: it names the rendezvous of a real job"))),
        false => Ok(()),
    }
}

/// The variables with those of `--vs` on top.
fn changed(variables: &Variables, text: &str) -> Result<Variables> {
    let words = shlex::split(text)
        .ok_or_else(|| UsageError(format!("--vs {text}: a quote is not closed")))?;
    let mut all = variables.clone();
    for word in words {
        let (name, value) = given::variable("--vs", OsStr::new(&word))?;
        check("--vs", &name)?;
        put(&mut all, &name, &value);
        // NCCL takes the empty string for unset.
        all.pop_if(|(_, value)| value.is_empty());
    }
    Ok(all)
}

/// Sets a variable, in place of an earlier value.
fn put(all: &mut Variables, name: &str, value: &[u8]) {
    all.retain(|(known, _)| known != name);
    all.push((name.into(), OsStr::from_bytes(value).into()));
}

fn collectives(words: &[String]) -> Result<Vec<Collective>> {
    let mut all = Vec::new();
    for word in words {
        let named: Vec<Collective> = match word.as_str() {
            "all" => Collective::ALL.to_vec(),
            word => {
                let error =
                    |error: UnknownCollective| UsageError(format!("--collective {word}: {error}"));
                vec![word.parse().map_err(error)?]
            }
        };
        all.extend(named);
    }
    let mut seen = HashSet::new();
    all.retain(|one| seen.insert(*one));
    Ok(all)
}

/// `12.4` as 12040.
fn driver(text: &str) -> Result<i32> {
    let parts = text.split_once('.').unwrap_or((text, "0"));
    let number = |part: &str| part.parse::<i32>().ok().filter(|n| (0..100).contains(n));
    match (number(parts.0), number(parts.1)) {
        (Some(major @ 11..), Some(minor)) => Ok(major * 1000 + minor * 10),
        _ => {
            let text = format!("--driver {text}: write the CUDA version of a driver, such as 12.4");
            Err(UsageError(text).into())
        }
    }
}

/// One thing that `--fail-on` asks for.
pub enum FailOn {
    /// Any finding at all.
    Any,
    /// A finding of this kind.
    Code(Code),
}

impl FailOn {
    /// Whether the result has it.
    pub fn matches(&self, result: &Explain) -> bool {
        match self {
            Self::Any => !result.findings.is_empty(),
            Self::Code(code) => result.findings.iter().any(|f| f.finding.code == *code),
        }
    }
}

fn parse_fail_on(words: &[String]) -> Result<Vec<FailOn>> {
    let known = "code (ND0201), name (no-channels-found) or any";
    given::fail_on(words, known, |word| match word {
        "any" => Some(FailOn::Any),
        word => word.parse().map(FailOn::Code).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_side_changes_adds_and_takes_away() {
        let base: Variables = vec![("A".into(), "1".into()), ("B".into(), "2".into())];
        let changed = changed(&base, "A= C='x y' B=3").expect("valid");
        let expected: Variables = vec![("C".into(), "x y".into()), ("B".into(), "3".into())];
        assert_eq!(changed, expected);
        assert!(super::changed(&base, "A='1").is_err());
        assert!(super::changed(&base, "A").is_err());
    }

    #[test]
    fn a_driver_is_a_version_of_cuda() {
        assert_eq!(driver("12.4").expect("valid"), 12040);
        assert_eq!(driver("13").expect("valid"), 13000);
        for text in ["", "x", "550.54", "9.0", "12.-1"] {
            assert!(driver(text).is_err(), "{text}");
        }
    }
}
