//! What the arguments of `env-check` ask for, checked: everything that can be
//! wrong usage is found here, before anything is started.

use super::given;
use crate::cli::EnvCheck as Arguments;
use crate::exit::UsageError;
use crate::launch::{Custom, LaunchPath, Values, all};
use crate::model::{Code, EnvCheck, Family, Verdict};
use crate::nccl::find::Choice;
use anyhow::Result;
use std::ffi::OsString;
use std::time::Duration;

/// Variables that the test itself sets for its children.
const OURS: [&str; 2] = ["HOME", "TMPDIR"];

/// The checked arguments.
pub struct Asked {
    /// The built-in paths to try.
    pub paths: Vec<&'static LaunchPath>,
    /// A launcher of the user's own.
    pub custom: Option<Custom>,
    /// What to set.
    pub values: Values,
    /// The longest time for one launch.
    pub limit: Duration,
    /// Which library to load.
    pub nccl: Choice,
    /// What makes the exit code 1.
    pub fail_on: Vec<FailOn>,
}

impl Asked {
    /// Checks the arguments.
    ///
    /// # Errors
    /// A [`UsageError`] that names the argument.
    pub fn parse(arguments: &Arguments) -> Result<Self> {
        let custom = match arguments.command.is_empty() {
            true => None,
            false => {
                let custom = Custom::new(arguments.command.clone());
                Some(custom.map_err(|error| UsageError(format!("{error:#}")))?)
            }
        };
        Ok(Self {
            paths: chosen(arguments)?,
            custom,
            values: Values::new(parse_variables(&arguments.env)?, arguments.light),
            limit: given::timeout(arguments.timeout)?,
            nccl: given::library("--nccl", &arguments.nccl)?,
            fail_on: parse_fail_on(&arguments.fail_on)?,
        })
    }
}

/// The built-in paths that the arguments ask for; none beside a launcher of
/// the user's own, unless named.
fn chosen(arguments: &Arguments) -> Result<Vec<&'static LaunchPath>> {
    for id in &arguments.path {
        if !all().any(|p| p.id == id) {
            let text = format!("no launch path {id:?}{} (--list shows all)", near(id));
            return Err(UsageError(text).into());
        }
    }
    let families = arguments.family.iter().map(|name| {
        let known = Family::ALL.iter().filter(|f| **f != Family::Custom);
        name.parse::<Family>().ok().filter(|f| *f != Family::Custom).ok_or_else(|| {
            let known: Vec<_> = known.map(|f| f.word()).collect();
            UsageError(format!("no family {name:?}; there are {}", known.join(", ")))
        })
    });
    let families: Vec<Family> = families.collect::<Result<_, _>>()?;
    let everything =
        arguments.path.is_empty() && families.is_empty() && arguments.command.is_empty();
    let wanted = |p: &&LaunchPath| {
        everything || arguments.path.iter().any(|id| id == p.id) || families.contains(&p.family)
    };
    Ok(all().filter(wanted).collect())
}

/// A hint at the id that was meant, when one is near.
fn near(id: &str) -> String {
    let scored = all().map(|p| (strsim::jaro_winkler(p.id, id), p.id));
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, near)) if score > 0.75 => format!("; did you mean {near}?"),
        _ => String::new(),
    }
}

/// One thing that `--fail-on` asks for.
pub enum FailOn {
    /// Any finding at all.
    Any,
    /// A finding of this kind.
    Code(Code),
    /// An observation with this verdict.
    Verdict(Verdict),
}

impl FailOn {
    /// Whether the result has it.
    pub fn matches(&self, result: &EnvCheck) -> bool {
        match self {
            Self::Any => !result.findings.is_empty(),
            Self::Code(code) => result.findings.iter().any(|f| f.code == *code),
            Self::Verdict(verdict) => {
                result.paths.iter().flat_map(|p| &p.observations).any(|o| o.verdict == *verdict)
            }
        }
    }
}

fn parse_fail_on(words: &[String]) -> Result<Vec<FailOn>> {
    let known = "code (ND0101), name (set-after-latched), verdict (never_delivered) or any";
    given::fail_on(words, known, |word| match word {
        "any" => Some(FailOn::Any),
        word => {
            let code = word.parse().map(FailOn::Code);
            code.or_else(|()| word.parse().map(FailOn::Verdict)).ok()
        }
    })
}

fn parse_variables(texts: &[OsString]) -> Result<Vec<(String, Vec<u8>)>> {
    let all = given::variables("-e", texts)?;
    match all.iter().find(|(name, _)| OURS.contains(&name.as_str())) {
        None => Ok(all),
        Some((name, _)) => {
            let text = format!("-e {name}: the test sets {name} for its children itself");
            Err(UsageError(text).into())
        }
    }
}
