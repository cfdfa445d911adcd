//! Folds neighbouring sizes with the same algorithm and protocol into ranges.

use crate::model::{PredictedChoice, PredictedRange};

/// Ranges of sizes, in the order of the choices.
pub(super) fn ranges(choices: &[PredictedChoice]) -> Vec<PredictedRange> {
    let alike = |a: &PredictedChoice, b: &PredictedChoice| {
        a.collective == b.collective && a.algo == b.algo && a.proto == b.proto
    };
    choices.chunk_by(alike).filter_map(range).collect()
}

fn range(group: &[PredictedChoice]) -> Option<PredictedRange> {
    let (first, last) = (group.first()?, group.last()?);
    Some(PredictedRange {
        collective: first.collective.clone(),
        from: first.bytes,
        to: last.bytes,
        algo: first.algo.clone(),
        proto: first.proto.clone(),
        channels: spread(group.iter().map(|choice| choice.channels)),
        threads: spread(group.iter().map(|choice| choice.threads)),
        time_us: first.time_us.zip(last.time_us).map(<[f64; 2]>::from),
        busbw: first.busbw.zip(last.busbw).map(<[f64; 2]>::from),
    })
}

/// The least and the greatest, when all are known.
fn spread(all: impl Iterator<Item = Option<u32>> + Clone) -> Option<[u32; 2]> {
    let known: Option<Vec<u32>> = all.collect();
    let known = known?;
    Some([*known.iter().min()?, *known.iter().max()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(bytes: u64, algo: Option<&str>, channels: Option<u32>) -> PredictedChoice {
        PredictedChoice {
            collective: "AllReduce".into(),
            bytes,
            algo: algo.map(Into::into),
            proto: algo.map(|_| "LL".into()),
            channels,
            threads: None,
            time_us: Some(bytes as f64),
            algbw: None,
            busbw: None,
        }
    }

    #[test]
    fn neighbours_fold_and_others_do_not() {
        let all = [
            choice(8, Some("Ring"), Some(1)),
            choice(16, Some("Ring"), Some(4)),
            choice(32, Some("NVLS"), Some(16)),
            choice(64, Some("Ring"), None),
        ];
        let found = ranges(&all);
        let text: Vec<_> = found.iter().map(|r| (r.from, r.to, r.channels)).collect();
        assert_eq!(text, [(8, 16, Some([1, 4])), (32, 32, Some([16, 16])), (64, 64, None)]);
        assert_eq!(found[0].time_us, Some([8.0, 16.0]));
        assert_eq!(found[0].busbw, None);
    }

    #[test]
    fn what_a_version_does_not_tell_folds_as_well() {
        let all = [choice(8, None, Some(1)), choice(16, None, Some(2))];
        assert_eq!(ranges(&all).len(), 1);
        assert_eq!(ranges(&[]), []);
    }
}
