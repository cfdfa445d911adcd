//! Tries.

use super::ask::{Asked, Side};
use crate::model::{ExplainFinding, Prediction};
use crate::virtual_node::node::NodeError;

pub(super) fn fill(
    _found: &mut [ExplainFinding],
    _side: &Side,
    _asked: &Asked,
    _prediction: &Prediction,
    _step: &dyn Fn(&str),
) -> Result<(), NodeError> {
    Ok(())
}
