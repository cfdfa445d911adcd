//! Plain data that flows between the stages. No input or output happens here
//! and nothing is decided here.

mod communicator;
mod effect;
mod env_check;
mod explain;
mod finding;
mod value;
mod words;

pub use communicator::{
    Activity, Buffers, CollectivePairs, Communicator, Communicators, Pair, Source,
};
pub use effect::{Effect, EffectSource, InForce, Outcome, Provenance};
pub use env_check::{
    EnvCheck, Family, NcclUsed, Observation, PathResult, Place, SCHEMA, Status, Verdict,
};
pub use explain::{
    ChoiceDifference, Chosen, CostCell, Differences, EXPLAIN_SCHEMA, Explain, ExplainFinding,
    FactDifference, Failure, FailureKind, GraphFound, Limits, NcclAsked, NodeAsked, PREDICTED,
    PredictedChoice, PredictedRange, Prediction, Reached, RingOrder, SettingAsked, SettingEffect,
    TreeShape, Tried,
};
pub use finding::{Code, Finding, Severity};
pub use value::{Latched, Seen, Unreadable};

pub use words::counted;
use words::words;
