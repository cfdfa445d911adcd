//! What the arguments of `explain` ask for, checked: everything that can be
//! wrong usage is found here, before anything is started.

use super::{given, sizes};
use crate::cli::Explain as Arguments;
use crate::exit::UsageError;
use crate::model::{Code, Explain};
use crate::nccl::collective::{Collective, UnknownCollective};
use crate::nccl::find::Choice;
use anyhow::Result;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

/// Variables by name, in the order in which they were given.
pub type Variables = Vec<(OsString, OsString)>;

/// The checked arguments.
pub struct Asked {
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
        let mut variables = Variables::new();
        if arguments.inherit_env {
            variables = inherited(arguments.host_network);
        }
        for (name, value) in given::variables("-e", &arguments.env)? {
            variables.retain(|(known, _)| *known != *name);
            variables.push((name.into(), OsStr::from_bytes(&value).into()));
        }
        let vs = arguments.vs.as_deref().map(|text| changed(&variables, text)).transpose()?;
        Ok(Self {
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
}

impl Asked {
    /// Whether there is another side.
    pub fn compares(&self, arguments: &Arguments) -> bool {
        self.vs.is_some() || self.vs_nccl.is_some() || !arguments.vs_topology.is_empty()
    }
}

/// The caller's own `NCCL_*`, without those that choose network cards of this
/// machine unless these are wanted.
fn inherited(network: bool) -> Variables {
    let cards = |name: &OsStr| {
        let name = name.as_bytes();
        name == b"NCCL_SOCKET_IFNAME" || name.starts_with(b"NCCL_IB_") || name == b"NCCL_NET"
    };
    let all = std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"NCCL_"));
    let mut all: Variables = all.filter(|(name, _)| network || !cards(name)).collect();
    all.sort();
    all
}

/// The variables with those of `--vs` on top.
fn changed(variables: &Variables, text: &str) -> Result<Variables> {
    let words = shlex::split(text)
        .ok_or_else(|| UsageError(format!("--vs {text}: a quote is not closed")))?;
    let mut all = variables.clone();
    for word in words {
        let (name, value) = given::variable("--vs", OsStr::new(&word))?;
        let name = OsString::from(name);
        all.retain(|(other, _)| *other != name);
        // NCCL takes the empty string for unset.
        if !value.is_empty() {
            all.push((name, OsStr::from_bytes(&value).into()));
        }
    }
    Ok(all)
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
