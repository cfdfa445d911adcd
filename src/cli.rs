//! The command line, as clap types only.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;

/// Shows which NCCL settings a process really uses (set, delivered by exec, live
/// in the process, latched by NCCL), and what NCCL would choose with them.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = EXIT_CODES
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 ran; 1 findings that --fail-on asks for; 2 wrong usage; \
    3 could not run; 128+N ended by signal N.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Starts children along many launch paths and shows, for each, what exec
    /// delivered (E), what is live (L), what NCCL latched (N) and the effect on
    /// a communicator
    #[command(name = "env-check", after_help = ENV_CHECK_HELP)]
    EnvCheck(Box<EnvCheck>),
    /// Asks NCCL itself what it would choose on a described machine, without a
    /// GPU: algorithm, protocol, channels and its estimate for each size, and why
    #[command(after_help = EXPLAIN_HELP)]
    Explain(Box<Explain>),
    /// Lists or removes fetched NCCL libraries
    Cache(Cache),
}

const ENV_CHECK_HELP: &str = "\
Examples:
  nccldiag env-check --nccl pip:2.27.7
  nccldiag env-check --path py-spawn,py-forkserver-late
  nccldiag env-check -e NCCL_BUFFSIZE=8M -e NCCL_ALGO=Tree --path fork-exec
  nccldiag env-check -- ssh host {probe}
  nccldiag env-check -- srun -n2 {probe}
  nccldiag env-check -- docker exec container {probe-sh}

After --, {probe} stands for the probe's command line (this program, and for N
the library, must be at the same path there), {probe-sh} for one that needs only
sh and the usual small tools there, {probe-py} for one that needs only Python 3.
The last two show E and L only. docs/env-check.md has the rules of quoting.

Exit codes: 0 ran; 1 findings that --fail-on asks for; 2 wrong usage; 3 could
not run; 130 or 143 ended by Ctrl-C or SIGTERM, with what was seen so far.";

/// Options of `env-check`.
#[derive(Debug, Args)]
pub struct EnvCheck {
    /// The libnccl.so.2 that probes load: auto, a path,
    /// pip:VERSION[+cu12|+cu13] (fetched through pip) or pid:PID
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub nccl: String,
    /// Only these launch paths, separated by commas (see --list)
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub path: Vec<String>,
    /// Only the paths of these families, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub family: Vec<String>,
    /// Lists the launch paths and ends
    #[arg(long)]
    pub list: bool,
    /// The interpreter for the Python paths
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,
    /// Sets this variable instead of the built-in test values; may be repeated
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<OsString>,
    /// Makes no communicator in the children: quick, but only what NCCL reads
    /// in its first call is checked, and no effect
    #[arg(long)]
    pub light: bool,
    /// The longest time for one launch, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub timeout: f64,
    /// How many launches run side by side [default: two for each core]
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZero<usize>>,
    /// Exit code 1 when there is a finding with this code or name, an
    /// observation with this verdict, or, for any, a finding at all
    #[arg(long, value_name = "CODE|VERDICT|any", value_delimiter = ',')]
    pub fail_on: Vec<String>,
    /// Where and how to write the result
    #[command(flatten)]
    pub output: Output,
    /// A launcher of your own, with {probe} where the program to start goes
    #[arg(last = true, value_name = "CMD ARGS")]
    pub command: Vec<OsString>,
}

const EXPLAIN_HELP: &str = "\
Examples:
  nccldiag explain --topology h100x8 --nccl pip:2.27.7
  nccldiag explain --topology topo.xml -e NCCL_ALGO=Ring -e NCCL_PROTO=LL
  nccldiag explain --topology topo.xml --vs 'NCCL_MIN_NCHANNELS=8'
  nccldiag explain --topology before.xml --vs-topology after.xml
  nccldiag explain --topology topo.txt --gpu rtxpro6000

topo.xml is what NCCL itself dumps on the machine in question with
NCCL_TOPO_DUMP_FILE=topo.xml; topo.txt is made there by
  (nvidia-smi topo -m; LC_ALL=C lscpu; nvidia-smi -q) > topo.txt

Everything shown is predicted: what NCCL would choose on this description, and
its own estimates. docs/explain.md is the manual.

Exit codes: 0 ran; 1 findings that --fail-on asks for; 2 wrong usage; 3 could
not run.";

/// Options of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The machine: a preset (see --list), NCCL's topology XML, or a text with
    /// the output of `nvidia-smi topo -m` and lscpu; may be repeated when these
    /// are in several files
    #[arg(long, value_name = "FILE|PRESET", required_unless_present = "list")]
    pub topology: Vec<OsString>,
    /// The GPUs: a model (see --list) or a file that describes one [default:
    /// what the topology says]
    #[arg(long, value_name = "MODEL|FILE")]
    pub gpu: Option<String>,
    /// How many GPUs take part: the first ones of the topology [default: all]
    #[arg(long, value_name = "N")]
    pub gpus: Option<NonZero<usize>>,
    /// The machine's CUDA driver, such as 12.4 or 13.0; NCCL turns on some
    /// things by it [default: 12.9, or that of the library if newer]
    #[arg(long, value_name = "VERSION")]
    pub driver: Option<String>,
    /// Lists the presets and GPU models and ends
    #[arg(long)]
    pub list: bool,
    /// The libnccl.so.2 to ask: auto, a path, pip:VERSION[+cu12|+cu13] (fetched
    /// through pip) or pid:PID
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    pub nccl: String,
    /// Sets a variable for the ranks; may be repeated
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<OsString>,
    /// Compares with these settings on top of -e; NAME= takes one away
    #[arg(long, value_name = "NAME=VALUE ...", allow_hyphen_values = true)]
    pub vs: Option<String>,
    /// Compares with this library
    #[arg(long, value_name = "WHICH")]
    pub vs_nccl: Option<String>,
    /// Compares with this machine; may be repeated like --topology
    #[arg(long, value_name = "FILE|PRESET")]
    pub vs_topology: Vec<OsString>,
    /// The GPUs of --vs-topology, like --gpu [default: what it says]
    #[arg(long, value_name = "MODEL|FILE", requires = "vs_topology")]
    pub vs_gpu: Option<String>,
    /// Sizes in bytes: A..B doubles from A to B; K, M and G are powers of 1024;
    /// several are separated by commas
    #[arg(long, value_name = "SIZES", default_value = "8..1G")]
    pub sizes: String,
    /// Collectives, separated by commas: allreduce, allgather, reducescatter,
    /// broadcast, reduce, or all
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "allreduce")]
    pub collective: Vec<String>,
    /// Gives the ranks this shell's own NCCL_* variables and conf files as well
    #[arg(long)]
    pub inherit_env: bool,
    /// Lets NCCL see this machine's network cards, which are kept out otherwise
    #[arg(long)]
    pub host_network: bool,
    /// Asks once only: does not take settings away one by one to see what each
    /// does, and tries none against findings
    #[arg(long)]
    pub once: bool,
    /// The longest time for one run of the virtual node, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub timeout: f64,
    /// Exit code 1 when there is a finding with this code or name, or, for any,
    /// a finding at all
    #[arg(long, value_name = "CODE|any", value_delimiter = ',')]
    pub fail_on: Vec<String>,
    /// Where and how to write the result
    #[command(flatten)]
    pub output: Output,
}

/// Options of every command that writes a result.
#[derive(Debug, Args)]
pub struct Output {
    /// How to write the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Write the result to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs, with a schema
    Json,
    /// For a spreadsheet
    Csv,
    /// For an issue or a wiki
    Markdown,
}

/// Options of `cache`.
#[derive(Debug, Args)]
pub struct Cache {
    /// What to do with the cache.
    #[command(subcommand)]
    pub action: CacheAction,
}

/// What to do with the cache.
#[derive(Debug, Subcommand)]
pub enum CacheAction {
    /// Lists the libraries with version, size and path
    List {
        /// Where and how to write the list
        #[command(flatten)]
        output: Output,
    },
    /// Removes all libraries, or those named
    Clean {
        /// Such as 2.28.9+cu13, or 2.27.7 for 2.27.7+cu12
        #[arg(value_name = "VERSION")]
        versions: Vec<String>,
    },
}
