//! The command line, as clap types only.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;

/// Shows which NCCL settings a process really uses: set, delivered by exec,
/// live in the process, latched by NCCL.
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
    /// The schema that other commands read
    Json,
    /// One row an observation
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
