//! How the views of an observation compare with the value that was set, as one
//! word or symbol each.

use super::table::Look;
use crate::model::{Effect, Latched, Observation, Outcome, Seen, Verdict};

/// How one view compares with the value that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The value that was set.
    Yes,
    /// None.
    No,
    /// Another one.
    Other,
    /// NCCL did not read it; of an effect: there is nothing to see.
    Unread,
    /// The view could not be read.
    Unknown,
    /// NCCL has no such variable.
    NoNcclValue,
}

impl Mark {
    /// As a word, or on a terminal as a symbol.
    pub(super) fn text(self, look: Look) -> &'static str {
        let (word, symbol) = match self {
            Self::Yes => ("yes", "✓"),
            Self::No => ("no", "✗"),
            Self::Other => ("other", "≠"),
            Self::Unread => ("-", "-"),
            Self::Unknown => ("?", "?"),
            Self::NoNcclValue => ("none", "∅"),
        };
        if look.terminal { symbol } else { word }
    }

    fn of(seen: &Seen, expected: &Seen) -> Self {
        match seen {
            Seen::Unreadable(_) => Self::Unknown,
            Seen::Absent => Self::No,
            same if same == expected => Self::Yes,
            Seen::Value(_) => Self::Other,
        }
    }

    /// N: what NCCL's `getenv` was answered, and for an integer what it made of
    /// that.
    fn of_nccl(o: &Observation) -> Self {
        let read = Self::of(&o.read, &o.expected);
        match (&o.latched, read) {
            (_, Self::No | Self::Other) => read,
            (Latched::Value(_), _) if o.verdict == Verdict::ParsedDifferently => Self::Other,
            (_, Self::Yes) => Self::Yes,
            (Latched::Value(n), _) => Self::of_number(*n, o),
            (Latched::NotRead | Latched::NotCached, _) => Self::Unread,
            // Only names that begin so are listed in the library.
            (Latched::NoSuchParameter, _) if !o.variable.starts_with("NCCL_") => Self::Unread,
            (Latched::NoSuchParameter, _) => Self::NoNcclValue,
            (Latched::Unreadable(_), _) => Self::Unknown,
        }
    }

    fn of_effect(effect: &Effect) -> Self {
        match effect {
            Effect::Unreadable { .. } => Self::Unknown,
            Effect::Known { outcome, .. } => match outcome {
                Some(Outcome::AsSet) => Self::Yes,
                Some(Outcome::Adjusted) => Self::Other,
                Some(Outcome::NotTaken) => Self::No,
                None => Self::Unread,
            },
        }
    }

    /// Without a record of the read only the number is left.
    fn of_number(latched: i64, o: &Observation) -> Self {
        let written = |v: &[u8]| v == latched.to_string().as_bytes();
        match o.verdict {
            Verdict::Delivered | Verdict::LiveOnly | Verdict::ExecOverwritten => Self::Yes,
            _ if o.expected.value().is_some_and(written) => Self::Yes,
            _ => Self::Other,
        }
    }
}

/// All views of one observation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) exec: Mark,
    pub(super) live: Mark,
    pub(super) nccl: Mark,
    /// None where a communicator shows nothing of this variable.
    pub(super) effect: Option<Mark>,
    pub(super) verdict: Verdict,
}

impl Marks {
    pub(super) fn of(o: &Observation) -> Self {
        Self {
            exec: Mark::of(&o.exec, &o.expected),
            live: Mark::of(&o.live, &o.expected),
            nccl: Mark::of_nccl(o),
            effect: o.effect.as_ref().map(Mark::of_effect),
            verdict: o.verdict,
        }
    }

    /// One row can stand for both: they differ at most in that one of them has
    /// no effect to show.
    pub(super) fn merged(self, other: Self) -> Option<Self> {
        let effect = self.effect.or(other.effect);
        let with = |marks: Self| Self { effect, ..marks };
        let agree = self.effect.is_none() || other.effect.is_none() || self.effect == other.effect;
        (agree && with(self) == with(other)).then(|| with(self))
    }
}
