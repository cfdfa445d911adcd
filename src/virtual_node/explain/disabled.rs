//! Why a pair of algorithm and protocol cannot be chosen. What a setting turned
//! off is found by asking without it (`settings`); here are the reasons that
//! lie in the machine and in NCCL itself (tuning.cc of NCCL 2.18 to 2.32).

use crate::model::{CostCell, Prediction};

/// What the reasons depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// GPUs and switches can do multicast.
    pub(super) multicast: bool,
    /// What settings turned off is known, so that the rest is the machine's.
    pub(super) alone: bool,
}

/// Names the reason for each pair that is off in a run without settings.
pub(super) fn by_machine(prediction: &mut Prediction, machine: Machine) {
    for cell in prediction.cost_table.iter_mut().filter(|cell| !cell.enabled) {
        if cell.disabled_by.is_none() {
            cell.disabled_by = reason(cell, machine).map(Into::into);
        }
    }
}

/// Names what turned off the pairs that are on in `without`, and marks those of
/// LL128 that are off there.
pub(super) fn by_setting(prediction: &mut Prediction, without: &Prediction, what: &str) {
    for cell in &mut prediction.cost_table {
        let same = |other: &&CostCell| {
            other.collective == cell.collective
                && other.algo == cell.algo
                && other.proto == cell.proto
        };
        let Some(other) = without.cost_table.iter().find(same) else { continue };
        if !cell.enabled && other.enabled && cell.disabled_by.is_none() {
            cell.disabled_by = Some(what.into());
        }
        cell.forced |= cell.enabled && !other.enabled && cell.proto == "LL128";
    }
}

fn reason(cell: &CostCell, machine: Machine) -> Option<&'static str> {
    let simple = cell.proto == "Simple";
    Some(match (&*cell.collective, &*cell.algo) {
        ("Broadcast" | "Reduce", algo) if algo != "Ring" => "this collective has only Ring",
        ("AllGather" | "ReduceScatter", "Tree" | "CollNetChain" | "NVLSTree") => {
            "this collective does not have it"
        }
        ("AllReduce", "PAT") => "PAT is for AllGather and ReduceScatter",
        (_, "PAT") => "PAT is for one rank a machine",
        (_, "CollNetDirect" | "CollNetChain") => "needs a network plugin with CollNet",
        (_, "NVLSTree") => "only between machines",
        (_, "NVLS") if !machine.multicast => "needs NVSwitches and GPUs with multicast",
        (_, "NVLS") if !simple => "NVLS has only Simple",
        // A setting may be the reason.
        _ if !machine.alone => return None,
        _ if cell.proto == "LL128" => "NCCL does not use LL128 by itself on these links",
        _ => "NCCL expects no bandwidth of it here",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(algo: &str, proto: &str, enabled: bool) -> CostCell {
        CostCell {
            collective: "AllReduce".into(),
            algo: algo.into(),
            proto: proto.into(),
            latency_us: 1.0,
            bandwidth: 1.0,
            max_threads: None,
            enabled,
            disabled_by: None,
            forced: false,
        }
    }

    fn table(cells: Vec<CostCell>) -> Prediction {
        Prediction { cost_table: cells, ..Prediction::default() }
    }

    #[test]
    fn a_setting_is_named_before_the_machine() {
        let mut with = table(vec![cell("Tree", "LL", false), cell("NVLS", "Simple", false)]);
        let without = table(vec![cell("Tree", "LL", true), cell("NVLS", "Simple", false)]);
        by_setting(&mut with, &without, "NCCL_ALGO=Ring");
        by_machine(&mut with, Machine { multicast: false, alone: true });
        let named: Vec<_> = with.cost_table.iter().map(|c| c.disabled_by.clone()).collect();
        assert_eq!(named[0].as_deref(), Some("NCCL_ALGO=Ring"));
        assert_eq!(named[1].as_deref(), Some("needs NVSwitches and GPUs with multicast"));
    }

    #[test]
    fn what_a_setting_may_have_turned_off_gets_no_guess() {
        let mut table = table(vec![cell("Tree", "LL", false), cell("PAT", "LL", false)]);
        by_machine(&mut table, Machine { multicast: true, alone: false });
        assert_eq!(table.cost_table[0].disabled_by, None);
        assert!(table.cost_table[1].disabled_by.is_some());
    }

    #[test]
    fn what_is_on_has_no_reason() {
        let mut on = table(vec![cell("Ring", "LL", true)]);
        by_machine(&mut on, Machine { multicast: true, alone: true });
        assert_eq!(on.cost_table[0].disabled_by, None);
    }
}
