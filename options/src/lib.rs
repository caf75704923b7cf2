//! What people can ask of `librdma_verbs_preload.so`: the values of its variables, as types.
//!
//! Both the library, which gets them from the environment, and the launcher `rdma-verbs`, which puts them there, read
//! values with this crate, so that both take and refuse the same ones. Nothing here does I/O or looks at the
//! environment.
//!
//! Every value has one spelling that its `Display` prints and that `parse` reads back; an error is a phrase for the end
//! of a line: `RDMA_VERBS_CHECK=maybe: expected on, off or full`.

mod fault;
mod names;
mod op;

pub use fault::{Event, Fault, Rule, When};
pub use names::{errno_from_name, errno_name, status_from_name, status_name};
pub use op::Op;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

/// The names of the variables.
pub mod variable {
    pub const CHECK: &str = "RDMA_VERBS_CHECK";
    pub const TRACE: &str = "RDMA_VERBS_TRACE";
    pub const STATS: &str = "RDMA_VERBS_STATS";
    pub const FORMAT: &str = "RDMA_VERBS_FORMAT";
    pub const FAULT: &str = "RDMA_VERBS_FAULT";
}

/// Why a value is not one: a phrase on one line, whatever the value has in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(String);

impl Error {
    fn new(why: impl Into<String>) -> Error {
        Error(why.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// `RDMA_VERBS_CHECK`: what is looked at in a post.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Check {
    /// Nothing.
    Off,
    /// What can be seen without knowing more than the call: certain failures are refused, `errno` is put right.
    #[default]
    On,
    /// And the rules of the manual pages, for which objects and requests are remembered.
    Full,
}

impl Check {
    pub fn parse(value: &OsStr) -> Result<Check, Error> {
        match value.to_str() {
            Some("off" | "0") => Ok(Check::Off),
            Some("on" | "1") => Ok(Check::On),
            Some("full") => Ok(Check::Full),
            _ => Err(Error::new("expected on, off or full")),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Check::Off => "off",
            Check::On => "on",
            Check::Full => "full",
        })
    }
}

/// `RDMA_VERBS_FORMAT`: how trace and statistics are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    Text,
    Json,
}

impl Format {
    pub fn parse(value: &OsStr) -> Result<Format, Error> {
        match value.to_str() {
            Some("text") => Ok(Format::Text),
            Some("json") => Ok(Format::Json),
            _ => Err(Error::new("expected text or json")),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Format::Text => "text",
            Format::Json => "json",
        })
    }
}

/// `RDMA_VERBS_TRACE` and `RDMA_VERBS_STATS`: where to write to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sink {
    Stderr,
    File(PathBuf),
}

impl Sink {
    /// A file of the name `stderr` is asked for as `./stderr`.
    pub fn parse(value: &OsStr) -> Result<Sink, Error> {
        if value.is_empty() {
            Err(Error::new("expected stderr or the name of a file"))
        } else if value == "stderr" {
            Ok(Sink::Stderr)
        } else {
            Ok(Sink::File(PathBuf::from(value)))
        }
    }

    /// The value of the variable, for [`Sink::parse`]: not always UTF-8, so there is no `Display`.
    pub fn value(&self) -> &OsStr {
        match self {
            Sink::Stderr => OsStr::new("stderr"),
            Sink::File(path) => path.as_os_str(),
        }
    }

    /// The format where `RDMA_VERBS_FORMAT` asks for none: a file whose name ends in `.json` is JSON.
    pub fn format(&self) -> Format {
        match self {
            Sink::File(path) if names_json(path) => Format::Json,
            _ => Format::Text,
        }
    }
}

/// Not `Path::extension`: that has none for a file called just `.json`.
fn names_json(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b".json")
}

/// Where to write to, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    pub sink: Sink,
    pub format: Format,
}

/// All that was asked for.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Options {
    pub check: Check,
    pub trace: Option<Output>,
    pub stats: Option<Output>,
    pub fault: Option<Fault>,
}

/// A variable whose value is not one. Its `Display` is one line: `NAME=VALUE: why`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub variable: &'static str,
    pub value: OsString,
    pub error: Error,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let value = self.value.to_string_lossy();
        write!(f, "{}={}: {}", self.variable, value.escape_debug(), self.error)
    }
}

impl Options {
    /// Reads the five variables through `get`; one that is empty is as good as unset, and so is, beside the report
    /// on it, one that is wrong.
    pub fn read(get: impl Fn(&'static str) -> Option<OsString>) -> (Options, Vec<Refused>) {
        let mut refused = Vec::new();
        let check = one(&get, &mut refused, variable::CHECK, Check::parse).unwrap_or_default();
        let trace = one(&get, &mut refused, variable::TRACE, Sink::parse);
        let stats = one(&get, &mut refused, variable::STATS, Sink::parse);
        let format = one(&get, &mut refused, variable::FORMAT, Format::parse);
        let fault = one(&get, &mut refused, variable::FAULT, Fault::parse);
        let output = |sink: Sink| Output { format: format.unwrap_or(sink.format()), sink };
        (Options { check, trace: trace.map(output), stats: stats.map(output), fault }, refused)
    }
}

fn one<T>(
    get: impl Fn(&'static str) -> Option<OsString>,
    refused: &mut Vec<Refused>,
    variable: &'static str,
    parse: impl Fn(&OsStr) -> Result<T, Error>,
) -> Option<T> {
    let value = get(variable).filter(|value| !value.is_empty())?;
    match parse(&value) {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            refused.push(Refused { variable, value, error });
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt;

    fn read(values: &[(&'static str, &str)]) -> (Options, Vec<String>) {
        let get = |name| values.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        let (options, refused) = Options::read(get);
        (options, refused.iter().map(Refused::to_string).collect())
    }

    fn file(path: &str, format: Format) -> Option<Output> {
        Some(Output { sink: Sink::File(path.into()), format })
    }

    #[test]
    fn nothing_asked_for_is_the_plain_check() {
        let nothing = Options { check: Check::On, trace: None, stats: None, fault: None };
        assert_eq!(read(&[]), (nothing.clone(), vec![]));
        let empty = [variable::CHECK, variable::TRACE, variable::STATS, variable::FORMAT, variable::FAULT];
        assert_eq!(read(&empty.map(|name| (name, ""))), (nothing, vec![]));
    }

    #[test]
    fn the_name_of_a_file_says_its_format_unless_a_variable_does() {
        let files = [(variable::TRACE, "/tmp/t.json"), (variable::STATS, "s.txt")];
        let (options, refused) = read(&files);
        assert_eq!(refused, [""; 0]);
        assert_eq!(options.trace, file("/tmp/t.json", Format::Json));
        assert_eq!(options.stats, file("s.txt", Format::Text));

        let (options, _) = read(&[files[0], files[1], (variable::FORMAT, "text")]);
        assert_eq!(options.trace, file("/tmp/t.json", Format::Text));

        let (options, _) = read(&[(variable::TRACE, "stderr"), (variable::FORMAT, "json")]);
        assert_eq!(options.trace, Some(Output { sink: Sink::Stderr, format: Format::Json }));
        assert_eq!(Sink::File(".json".into()).format(), Format::Json);
        assert_eq!(Sink::File("json".into()).format(), Format::Text);
        assert_eq!(Sink::Stderr.format(), Format::Text);
    }

    #[test]
    fn each_wrong_value_is_reported_and_the_others_hold() {
        let (options, refused) = read(&[
            (variable::CHECK, "maybe"),
            (variable::TRACE, "stderr"),
            (variable::FORMAT, "xml\n"),
            (variable::FAULT, "post:nth=0"),
        ]);
        let trace = Some(Output { sink: Sink::Stderr, format: Format::Text });
        assert_eq!(options, Options { trace, ..Options::default() });
        assert_eq!(
            refused,
            [
                "RDMA_VERBS_CHECK=maybe: expected on, off or full",
                "RDMA_VERBS_FORMAT=xml\\n: expected text or json",
                "RDMA_VERBS_FAULT=post:nth=0: \"nth=0\": expected a number from 1",
            ]
        );
    }

    #[test]
    fn values_are_read_back() {
        for check in [Check::Off, Check::On, Check::Full] {
            assert_eq!(Check::parse(check.to_string().as_ref()), Ok(check));
        }
        for format in [Format::Text, Format::Json] {
            assert_eq!(Format::parse(format.to_string().as_ref()), Ok(format));
        }
        assert_eq!(Check::parse("0".as_ref()), Ok(Check::Off));
        assert_eq!(Check::parse("1".as_ref()), Ok(Check::On));
        for wrong in ["", "ON", "yes", "2", "full "] {
            assert!(Check::parse(wrong.as_ref()).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_name_of_a_file_is_read_back(bytes in prop::collection::vec(1..=255u8, 1..20)) {
            let value = OsString::from_vec(bytes);
            let sink = Sink::parse(&value).expect("not empty");
            prop_assert_eq!(sink.value(), value.as_os_str());
        }

        #[test]
        fn whatever_is_wrong_is_reported_on_one_line(bytes in prop::collection::vec(1..=255u8, 1..40)) {
            let value = OsString::from_vec(bytes);
            let (options, refused) = Options::read(|_| Some(value.clone()));
            prop_assert!(options.trace.is_some() && options.stats.is_some());
            for refused in refused {
                prop_assert!(!refused.to_string().contains(char::is_control), "{}", refused);
            }
        }
    }
}
