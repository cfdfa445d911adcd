//! Known bad answers.

use super::ask::Side;
use crate::model::{ExplainFinding, Prediction};

pub(super) fn findings(_side: &Side, _prediction: &Prediction) -> Vec<ExplainFinding> {
    Vec::new()
}
