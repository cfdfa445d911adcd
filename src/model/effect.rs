//! What NCCL made of a variable in a communicator, and on which GPUs that
//! communicator was.

use super::Unreadable;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The effect of one variable in one observed process.
///
/// JSON: `{"in_force": ..., "outcome": ...}` or `{"unreadable": why}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Effect {
    /// There was a communicator, and this part of it could be read.
    Known {
        /// What the communicator has.
        in_force: InForce,
        /// How that compares with the value that was set; `None` when it
        /// cannot be told.
        outcome: Option<Outcome>,
    },
    /// There was none, or it could not be read.
    Unreadable {
        /// Why.
        unreadable: Unreadable,
    },
}

impl Effect {
    /// An effect that could not be read.
    pub fn unreadable(why: impl Into<String>) -> Self {
        Self::Unreadable { unreadable: Unreadable::new(why) }
    }
}

/// What a communicator has in the place that a variable is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum InForce {
    /// A size in bytes, or a number of channels, threads or blocks.
    Number(u64),
    /// The algorithms or protocols that all-reduce may use.
    Names(Vec<String>),
}

impl InForce {
    /// How it is written that no algorithm or no protocol is left.
    pub const NOTHING: &str = "nothing";

    /// Whether no algorithm or no protocol is left.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Names(names) if names.is_empty())
    }
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Names(_) if self.is_nothing() => f.write_str(Self::NOTHING),
            Self::Names(names) => f.write_str(&names.join(",")),
        }
    }
}

super::words! {
    /// How what is in force compares with the value that was set.
    Outcome {
        /// NCCL took the value and works by it.
        AsSet = "as_set",
        /// NCCL took the value and made something else of it.
        Adjusted = "adjusted",
        /// NCCL never took the value.
        NotTaken = "not_taken",
    }
}

super::words! {
    /// Where an effect comes from.
    Provenance {
        /// GPUs that do not exist: what NCCL would do.
        Virtual = "virtual",
        /// Two GPUs of this machine.
        Measured = "measured",
        /// No communicator was made.
        None = "none",
    }
}

/// On which GPUs the probes made their communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectSource {
    /// Of which kind they are.
    pub provenance: Provenance,
    /// Which they are and why these, or why there are none; one phrase.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_has_one_json_form_for_each_state() {
        let known = |in_force, outcome| Effect::Known { in_force, outcome };
        let names = InForce::Names(vec!["Ring".into()]);
        let rows = [
            (known(names, Some(Outcome::AsSet)), r#"{"in_force":["Ring"],"outcome":"as_set"}"#),
            (known(InForce::Number(512), None), r#"{"in_force":512,"outcome":null}"#),
            (Effect::unreadable("it ended"), r#"{"unreadable":"it ended"}"#),
        ];
        for (effect, json) in rows {
            assert_eq!(serde_json::to_string(&effect).expect("plain data"), json);
            assert_eq!(serde_json::from_str::<Effect>(json).expect("own output"), effect);
        }
    }
}
