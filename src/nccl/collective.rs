//! The collectives that a virtual node can enqueue: their names, and how a
//! size in bytes becomes the arguments of a call. How NCCL is called is not
//! here.

use super::image::NcclVersion;
use std::fmt;
use std::str::FromStr;

/// `ncclFloat32`, and `ncclInt8` for what is only moved.
const FLOAT: (i32, u64) = (7, 4);
const BYTE: (i32, u64) = (0, 1);

/// A collective operation of NCCL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// `ncclAllReduce`
    #[default]
    AllReduce,
    /// `ncclAllGather`
    AllGather,
    /// `ncclReduceScatter`
    ReduceScatter,
    /// `ncclBroadcast`
    Broadcast,
    /// `ncclReduce`
    Reduce,
}

/// The arguments of one call on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// `count`: elements, of one rank's part where a collective has parts.
    pub count: u64,
    /// `ncclDataType_t`
    pub datatype: i32,
    /// The total size in bytes, by which NCCL chooses; no buffer is larger.
    pub bytes: u64,
    /// The bytes of one rank's part: the same as `bytes` where there are none.
    pub part: u64,
}

impl Call {
    /// The size that NCCL's log shows for this call (measured with all
    /// libraries of the tests): the total up to 2.23, from 2.24 on the product
    /// of `count` and the size of the type, which is one rank's part.
    pub fn logged(self, version: NcclVersion) -> u64 {
        if version < NcclVersion::new(2, 24, 0) { self.bytes } else { self.part }
    }
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::Broadcast, Self::Reduce];

    /// The name in NCCL's log: `AllReduce`.
    pub fn name(self) -> &'static str {
        self.function().trim_start_matches("nccl")
    }

    /// The C function: `ncclAllReduce`.
    pub fn function(self) -> &'static str {
        match self {
            Self::AllReduce => "ncclAllReduce",
            Self::AllGather => "ncclAllGather",
            Self::ReduceScatter => "ncclReduceScatter",
            Self::Broadcast => "ncclBroadcast",
            Self::Reduce => "ncclReduce",
        }
    }

    /// Bus bandwidth by algorithm bandwidth, as nccl-tests defines it: what the
    /// links carry, which can be compared between numbers of ranks.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks.max(1) as f64;
        match self {
            Self::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Self::AllGather | Self::ReduceScatter => (ranks - 1.0) / ranks,
            Self::Broadcast | Self::Reduce => 1.0,
        }
    }

    /// The call whose total size comes next to `bytes`. As in nccl-tests, the
    /// size is that of the larger buffer: for all-gather what a rank receives,
    /// for reduce-scatter what it sends. NCCL chooses by it too
    /// (`ncclFuncMaxSendRecvCount`), but logs another: see [`Call::logged`].
    ///
    /// NCCL takes whole elements and equal parts: floats for sums, bytes for
    /// what is only moved. A size that is no multiple of that becomes the next
    /// larger one, and [`Call::bytes`] says which.
    pub fn call(self, bytes: u64, ranks: u64) -> Call {
        let (datatype, element) = match self {
            Self::AllReduce | Self::ReduceScatter | Self::Reduce => FLOAT,
            Self::AllGather | Self::Broadcast => BYTE,
        };
        let parts = match self {
            Self::AllGather | Self::ReduceScatter => ranks.max(1),
            Self::AllReduce | Self::Broadcast | Self::Reduce => 1,
        };
        let count = bytes.div_ceil(element.saturating_mul(parts)).max(1);
        let part = count.saturating_mul(element);
        Call { count, datatype, bytes: part.saturating_mul(parts), part }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no collective that a virtual node enqueues; it has all-reduce, all-gather, \
     reduce-scatter, broadcast and reduce"
)]
pub struct UnknownCollective(String);

impl FromStr for Collective {
    type Err = UnknownCollective;

    /// Without regard to case, `_` and `-`: `AllReduce`, `all_reduce`,
    /// `all-reduce`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain: String = text.chars().filter(|c| !matches!(c, '_' | '-')).collect();
        let known = Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(&plain));
        known.ok_or_else(|| UnknownCollective(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_all_spellings() {
        for one in Collective::ALL {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
        for text in ["all-reduce", "ALL_REDUCE", "allreduce"] {
            assert_eq!(text.parse(), Ok(Collective::AllReduce), "{text}");
        }
        let error = "all reduce".parse::<Collective>().expect_err("a space is no separator");
        assert!(error.to_string().contains("\"all reduce\" is no collective"), "{error}");
    }

    #[test]
    fn sizes_become_whole_elements_and_equal_parts() {
        use Collective::*;
        for (collective, bytes, expected) in [
            (AllReduce, 1024, (256, 1024)),
            (AllReduce, 6, (2, 8)),
            (AllReduce, 0, (1, 4)),
            (AllGather, 1024, (128, 1024)),
            (AllGather, 9, (2, 16)),
            (ReduceScatter, 1024, (32, 1024)),
            (ReduceScatter, 8, (1, 32)),
            (Broadcast, 9, (9, 9)),
            (Reduce, 9, (3, 12)),
        ] {
            let call = collective.call(bytes, 8);
            assert_eq!((call.count, call.bytes), expected, "{collective} {bytes}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_size_is_made_smaller(bytes: u64, ranks in 0..64u64) {
            for collective in Collective::ALL {
                let call = collective.call(bytes, ranks);
                proptest::prop_assert!(call.bytes >= bytes && call.count > 0);
            }
        }
    }
}
