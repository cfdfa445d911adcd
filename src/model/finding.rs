//! Findings: stable codes, what they mean, and how a report carries them.
//! docs/findings.md explains each code at length.

use serde::{Deserialize, Serialize};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; the setting works where it was observed.
    Info,
    /// A setting is lost or changed on this way.
    Warning,
    /// A setting is silently something else than what was written.
    Error,
}

macro_rules! codes {
    ($($variant:ident = $code:literal $slug:literal $severity:ident, $doc:literal;)*) => {
        /// A kind of finding. Codes never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $doc] $variant,)*
        }

        impl Code {
            /// Every code, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The stable number, such as `ND0101`.
            pub fn number(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// The stable name, such as `set-after-latched`.
            pub fn slug(self) -> &'static str {
                match self { $(Self::$variant => $slug,)* }
            }

            /// How much it matters.
            pub fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)* }
            }
        }
    };
}

codes! {
    SetAfterLatched = "ND0101" "set-after-latched" Error,
        "Set only after NCCL had read and cached the variable.";
    NeverDelivered = "ND0102" "never-delivered" Warning,
        "Neither the exec block nor the live environ has the value.";
    ChangedAfterExec = "ND0103" "changed-after-exec" Warning,
        "Delivered by exec, then changed or removed inside the process.";
    LiveOnly = "ND0104" "live-only" Info,
        "Set inside the process: works there, absent from the exec block.";
    OverwrittenBySiteFile = "ND0105" "overwritten-by-site-file" Warning,
        "A Python site file replaced the delivered value.";
    OverwrittenByConfFile = "ND0106" "overwritten-by-conf-file" Warning,
        "A value from an nccl.conf file is in force instead.";
    Overwritten = "ND0107" "overwritten" Warning,
        "Another setting on the way, or a framework, won.";
    ExecBlockOverwritten = "ND0108" "exec-block-overwritten" Info,
        "A process title destroyed the exec block; judged by the live environ.";
    PythonMappingOnly = "ND0109" "python-mapping-only" Warning,
        "Only Python's os.environ has the value; libc and children never see it.";
    ParsedDifferently = "ND0110" "parsed-differently" Error,
        "NCCL parsed the text to another number, such as 8M to 8.";
    NotRead = "ND0111" "not-read" Info,
        "This NCCL knows the variable and had not read it when it was observed.";
    UnknownVariable = "ND0112" "unknown-variable" Error,
        "This NCCL knows no variable of that name.";
    CannotTell = "ND0113" "cannot-tell" Warning,
        "A view could not be read, so no verdict is possible.";
    NcclNotChecked = "ND0114" "nccl-not-checked" Warning,
        "What NCCL latched was not checked at all.";
    ConfFilePresent = "ND0115" "conf-file-present" Info,
        "A conf file that the test cannot keep out exists on this machine.";
    RemovedFromTest = "ND0116" "removed-from-test" Info,
        "NCCL variables of the caller were removed before the test.";
    NcclCallFailed = "ND0117" "nccl-call-failed" Warning,
        "NCCL's own call failed in the observed process.";
    DuplicateEntry = "ND0118" "duplicate-entry" Warning,
        "The exec block has the variable more than once; getenv takes the first.";
    ForeignValue = "ND0119" "foreign-value" Warning,
        "A value is in force that no place of the test set.";
    PathFailed = "ND0120" "path-failed" Error,
        "No probe could be observed on a launch path that was tried.";
    AdjustedByNccl = "ND0121" "adjusted-by-nccl" Warning,
        "NCCL took the value, but made something else of it.";
    RefusedByNccl = "ND0122" "refused-by-nccl" Error,
        "NCCL makes no communicator with this value.";
    EffectNotChecked = "ND0123" "effect-not-checked" Info,
        "No communicator could be made or read, so no effect was seen.";
    NoChannelsFound = "ND0201" "no-channels-found" Error,
        "NCCL's search found no channels and fell back to 0.1 GB/s.";
    FewChannels = "ND0202" "few-channels" Warning,
        "NCCL uses two channels or less between four or more GPUs.";
    NoEffect = "ND0203" "no-effect" Info,
        "NCCL read the setting, and nothing is different without it.";
    NcclCrashed = "ND0204" "nccl-crashed" Error,
        "A rank was ended by a signal inside NCCL.";
    NoAnswer = "ND0205" "no-answer" Error,
        "NCCL refused to make a communicator or to run a collective.";
    Ll128Forced = "ND0206" "ll128-forced" Error,
        "LL128 is enabled where NCCL itself does not use it: results may be wrong.";
    ThroughHostMemory = "ND0207" "through-host-memory" Warning,
        "GPUs of one machine reach each other through host memory.";
    UnevenLinks = "ND0208" "uneven-nvlinks" Warning,
        "GPUs of one machine have different numbers of NVLinks.";
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.number(), self.slug())
    }
}

impl std::str::FromStr for Code {
    type Err = ();

    /// Takes the number or the name, in any case.
    fn from_str(text: &str) -> Result<Self, ()> {
        let found = Self::ALL
            .iter()
            .find(|c| c.number().eq_ignore_ascii_case(text) || c.slug().eq_ignore_ascii_case(text));
        found.copied().ok_or(())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.number())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|()| serde::de::Error::custom(format!("unknown code {text}")))
    }
}

/// One thing to know, with its cure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind.
    pub code: Code,
    /// How much it matters.
    pub severity: Severity,
    /// The cause, in one sentence.
    pub message: String,
    /// The cure, in one sentence.
    pub fix: String,
    /// The launch paths, or files, that it was seen on.
    #[serde(rename = "where")]
    pub places: Vec<String>,
}

impl Finding {
    /// A finding with the severity of its code.
    pub fn new(code: Code, message: String, fix: &str, places: Vec<String>) -> Self {
        Self { code, severity: code.severity(), message, fix: fix.into(), places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_number_and_name() {
        for (i, a) in Code::ALL.iter().enumerate() {
            assert_eq!(a.number().parse(), Ok(*a));
            assert_eq!(a.slug().to_uppercase().parse(), Ok(*a));
            for b in &Code::ALL[i + 1..] {
                assert!(a.number() != b.number() && a.slug() != b.slug());
            }
        }
    }
}
