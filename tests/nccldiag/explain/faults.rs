//! Answers that once were wrong, each named after its fault.

use super::{answer, ask, asking, explain, finding, ranges};
use crate::harness::{Sandbox, finish, main_library};
use nccldiag::model::{Explain, FailureKind, SettingEffect};

fn effects(result: &Explain) -> Vec<SettingEffect> {
    result.prediction.settings.iter().map(|one| one.effect).collect()
}

/// NCCL puts the lines of a conf file into the environment once in a process,
/// so ranks that were asked before would not have them.
#[test]
fn shared_ranks_lost_the_lines_of_a_conf_file() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let conf = sandbox.file("nccl.conf", "NCCL_ALGO=Ring\n");
    let conf = format!("NCCL_CONF_FILE={}", conf.display());
    let args = ["--topology", "h100x8", "--sizes", "1G", "-e", &conf, "-e"];
    let ask = |more: &[&str]| ask(&library, &args.iter().chain(more).copied().collect::<Vec<_>>());
    let both = ask(&["NCCL_ALGO=Tree", "--vs", "NCCL_ALGO="]);
    let other = &both.vs.expect("the other side").ranges[0];
    assert_eq!(other.algo.as_deref(), Some("Ring"));
    let same = ask(&["NCCL_ALGO=Ring"]);
    assert_eq!(effects(&same), [SettingEffect::None; 2]);
}

/// The virtual node dereferenced the null pointer that NCCL handed to open, and
/// blamed NCCL for the crash.
#[test]
fn data_over_the_network_was_called_a_crash_of_nccl() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "rtxpro6000x8", "--sizes", "8,1M", "-e", "NCCL_SHM_DISABLE=1"];
    let result = ask(&library, &args);
    assert_eq!(result.prediction.failure, None);
    assert!(result.prediction.transports.iter().all(|one| one.via.starts_with("NET/Socket")));
    let message = &finding(&result, "ND0207").finding.message;
    assert!(message.contains("the network because of NCCL_SHM_DISABLE=1"), "{message}");
}

#[test]
fn the_rendezvous_of_a_real_job_was_passed_on() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("no waiting");
    let address = listener.local_addr().expect("it is bound").to_string();
    let args = ["--topology", "h100x8", "--sizes", "8", "--inherit-env", "--format", "json"];
    let mut command = asking(&sandbox, &library, args);
    let ended = finish(command.env("NCCL_COMM_ID", &address).env("NCCL_HOSTID", "x"));
    let result = answer(&ended);
    assert!(result.prediction.settings.is_empty() && result.prediction.failure.is_none());
    assert!(result.notes.iter().any(|note| note.starts_with("NCCL_COMM_ID is left out")));
    assert!(listener.accept().is_err(), "a rank connected");
    let setting = format!("NCCL_COMM_ID={address}");
    explain(&library, ["--topology", "h100x8", "-e", &setting]).exits(2).complains(&["rendezvous"]);
}

#[test]
fn without_further_questions_reasons_were_guessed() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "h100x8", "--sizes", "8", "--once", "-e", "NCCL_ALGO=Ring"];
    let result = ask(&library, &args);
    let why = |algo: &str| {
        let mut cells = result.prediction.cost_table.iter();
        let cell = cells.find(|cell| cell.algo == algo && cell.proto == "Simple");
        cell.expect("it is in the table").disabled_by.clone()
    };
    assert_eq!(why("Tree"), None, "a setting is the reason");
    assert_eq!(why("NVLSTree").as_deref(), Some("only between machines"));
}

#[test]
fn two_bad_settings_excused_each_other() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "h100x8", "--sizes", "8", "-e", "NCCL_ALGO=bogus", "-e"];
    let result = ask(&library, &[&args[..], &["NCCL_PROTO=bogus"]].concat());
    assert_eq!(effects(&result), [SettingEffect::Refused; 2]);
    assert_eq!(result.findings.len(), 1, "{:?}", result.findings);
    assert_eq!(finding(&result, "ND0122").finding.places.len(), 2);
}

/// NCCL's log says nothing about many variables that it reads.
#[test]
fn a_variable_that_is_read_was_called_not_read() {
    let Some(library) = main_library() else { return };
    for setting in ["NCCL_NET=Socket", "NCCL_TUNER_PLUGIN=/no/such", "NCCL_P2P_LEVEL=bogus"] {
        let args = ["--topology", "h100x8", "--sizes", "8", "-e", setting];
        assert_eq!(effects(&ask(&library, &args)), [SettingEffect::None], "{setting}");
    }
}

#[test]
fn a_limit_of_threads_was_called_no_effect() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "h100x8", "--sizes", "8", "-e", "NCCL_LL128_NTHREADS=320"];
    assert_eq!(effects(&ask(&library, &args)), [SettingEffect::Changes]);
}

#[test]
fn causes_that_are_settings_were_called_the_machines() {
    let Some(library) = main_library() else { return };
    for setting in ["NCCL_P2P_LEVEL=LOC", "NCCL_P2P_DISABLE=01"] {
        let result = ask(&library, &["--topology", "a100x8", "--sizes", "8", "-e", setting]);
        let message = &finding(&result, "ND0207").finding.message;
        assert!(message.ends_with(&format!("because of {setting}")), "{message}");
    }
    let result = ask(&library, &["--topology", "h100x8", "--sizes", "8", "-e", "NCCL_MAX_CTAS=2"]);
    assert!(result.findings.is_empty(), "{:?}", result.findings);
}

#[test]
fn a_missing_topology_file_made_this_machine_the_answer() {
    let Some(library) = main_library() else { return };
    for file in ["/no/such", ""] {
        let setting = format!("NCCL_TOPO_FILE={file}");
        let args = ["--topology", "rtx4090x4", "--sizes", "8", "-e", &setting];
        explain(&library, args).exits(2).complains(&["NCCL_TOPO_FILE"]);
    }
    let sandbox = Sandbox::new();
    let other = sandbox.file("other.xml", include_str!("../../../matrix/topologies/a100x8.xml"));
    let setting = format!("NCCL_TOPO_FILE={}", other.display());
    let result = ask(&library, &["--topology", "h100x8", "--sizes", "8", "--once", "-e", &setting]);
    assert!(result.notes.iter().any(|note| note.contains("neither machine")), "{:?}", result.notes);
}

#[test]
fn the_other_sides_findings_were_not_made() {
    let Some(library) = main_library() else { return };
    let result =
        ask(&library, &["--topology", "rtx4090x4", "--sizes", "8", "--vs", "NCCL_PROTO=LL128"]);
    let found = &finding(&result, "ND0206").finding;
    assert_eq!(found.places, ["other side: NCCL_PROTO=LL128"]);
    let once = ["--topology", "rtx4090x4", "--sizes", "8", "--once", "-e", "NCCL_PROTO=LL128"];
    let result = ask(&library, &once);
    assert!(result.notes.iter().any(|note| note.contains("ND0206")), "{:?}", result.notes);
}

#[test]
fn a_run_that_time_ended_was_called_a_refusal() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "h100x8", "--timeout", "0.05", "-e", "NCCL_ALGO=Ring"];
    let result = explain(&library, args.iter().chain(&["--format", "json"]));
    if result.status.code() == Some(3) {
        // Not even the ranks were there in time, which is an error.
        result.complains(&["had not ended after"]);
        return;
    }
    let result = answer(&result);
    if let Some(failure) = &result.prediction.failure {
        assert_eq!(failure.kind, FailureKind::TooLate);
        assert_eq!(effects(&result), [SettingEffect::NotTried]);
    }
}

#[test]
fn a_communicator_that_does_not_block_was_called_refused() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "h100x8", "--sizes", "8,1G", "-e", "NCCL_COMM_BLOCKING=0"];
    let result = ask(&library, &args);
    assert_eq!(result.prediction.failure, None);
    assert_eq!(ranges(&result), ["Ring LL 8..8", "NVLS Simple 1073741824..1073741824"]);
}

#[test]
fn a_fifo_as_a_gpu_model_hung() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let fifo = sandbox.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let fifo = fifo.to_str().expect("a plain path");
    explain(&library, ["--topology", "h100x8", "--gpu", fifo]).exits(3).complains(&["FIFO"]);
}
