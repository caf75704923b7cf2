//! The command line.

use crate::{BROKEN, Failure, USAGE, output};
use clap::Parser;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use rdma_verbs_options::{Check, Fault, Format, Sink, variable};
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::PathBuf;

/// The variable of the software device.
const PCAP: &str = "RDMA_SOFT_PCAP";

/// Runs PROGRAM, which need not be built for it, and checks, shows, counts or fails its RDMA calls.
#[derive(Parser)]
#[command(
    name = "rdma-verbs",
    version,
    override_usage = "rdma-verbs [OPTION]... [--] PROGRAM [ARGS]...",
    after_help = "Options come before PROGRAM; what comes after it is its own. A FILE is made anew.\n\
        Without an option, calls are checked as with --check=on.\n\
        \n\
        The exit status is PROGRAM's; 2 for a wrong option, 125 where rdma-verbs itself fails,\n\
        126 where PROGRAM cannot be executed, 127 where it is not found. See rdma-verbs(1)."
)]
pub(crate) struct Arguments {
    /// Refuse what cannot work (on); report misuse, too (full, the default); or neither (off)
    #[arg(
        long, value_name = "on|off|full", require_equals = true, num_args = 0..=1, default_missing_value = "full",
        value_parser = OsStringValueParser::new().try_map(|value| Check::parse(&value)),
    )]
    check: Option<Check>,

    /// Write a line for each post and each completion to FILE or standard error
    #[arg(
        long, value_name = "FILE", require_equals = true, num_args = 0..=1, default_missing_value = "stderr",
        value_parser = OsStringValueParser::new().try_map(|value| Sink::parse(&value)),
    )]
    trace: Option<Sink>,

    /// Write counts and latencies to FILE or standard error, at exit and on SIGUSR2
    #[arg(
        long, value_name = "FILE", require_equals = true, num_args = 0..=1, default_missing_value = "stderr",
        value_parser = OsStringValueParser::new().try_map(|value| Sink::parse(&value)),
    )]
    stats: Option<Sink>,

    /// Trace and statistics as text or JSON; by default JSON for a FILE named *.json
    #[arg(
        long, value_name = "text|json",
        value_parser = OsStringValueParser::new().try_map(|value| Format::parse(&value)),
    )]
    format: Option<Format>,

    /// Make posts or completions fail, as in post.send:errno=ENOMEM:nth=3
    #[arg(
        long, value_name = "SPEC",
        value_parser = OsStringValueParser::new().try_map(|value| Fault::parse(&value)),
    )]
    fault: Option<Fault>,

    /// Run on an RDMA device made of software: no hardware, no kernel driver, no privileges
    #[arg(long)]
    pub(crate) soft: bool,

    /// With --soft: capture what is sent and received into FILE, for Wireshark; %p in it is the process
    #[arg(
        long, value_name = "FILE", requires = "soft",
        value_parser = OsStringValueParser::new().try_map(file),
    )]
    pcap: Option<PathBuf>,

    // The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", hide = true)]
    pub(crate) command: Vec<OsString>,
}

impl Arguments {
    /// `None` where help or the version was asked for, and printed.
    pub(crate) fn read(arguments: impl Iterator<Item = OsString>) -> Result<Option<Arguments>, Failure> {
        match Arguments::try_parse_from(arguments) {
            Ok(arguments) => Ok(Some(arguments)),
            Err(error) => print(&error).map(|()| None),
        }
    }

    pub(crate) fn program(&self) -> &OsStr {
        &self.command[0]
    }

    /// The library's variables; the others stay as they are in the environment. Makes the files.
    pub(crate) fn variables(&self) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let mut variables = Vec::new();
        if let Some(check) = self.check {
            variables.push((variable::CHECK, check.to_string().into()));
        }
        if let Some(sink) = &self.trace {
            variables.push((variable::TRACE, output::make(sink)?));
        }
        if let Some(sink) = &self.stats {
            variables.push((variable::STATS, output::make(sink)?));
        }
        if let Some(format) = self.format {
            variables.push((variable::FORMAT, format.to_string().into()));
        }
        if let Some(fault) = &self.fault {
            variables.push((variable::FAULT, fault.to_string().into()));
        }
        if let Some(path) = &self.pcap {
            variables.push((PCAP, output::from_the_root(path)?.into()));
        }
        Ok(variables)
    }
}

fn file(value: OsString) -> Result<PathBuf, &'static str> {
    if value.is_empty() { Err("expected the name of a file") } else { Ok(value.into()) }
}

/// Prints help or the version; an error becomes one line.
fn print(error: &clap::Error) -> Result<(), Failure> {
    let why = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = error.print().and_then(|()| std::io::stdout().flush());
            return printed.map_err(|error| Failure { status: BROKEN, why: format!("standard output: {error}") });
        }
        ErrorKind::MissingRequiredArgument if lacks_soft(error) => "--pcap needs --soft".into(),
        ErrorKind::MissingRequiredArgument => "expected the name of a program".into(),
        _ => first_paragraph(&error.to_string()),
    };
    Err(Failure { status: USAGE, why: format!("{why} (rdma-verbs --help shows the options)") })
}

fn lacks_soft(error: &clap::Error) -> bool {
    matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::Strings(missing)) if missing.iter().any(|name| name == "--soft"))
}

/// What is wrong, without the usage and the tips that clap has below.
fn first_paragraph(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or(text);
    let words: Vec<_> = paragraph.trim_start_matches("error: ").split_whitespace().collect();
    words.join(" ")
}
