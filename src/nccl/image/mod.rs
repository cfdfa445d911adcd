//! Reads a libnccl file as data: its version, the settings that it knows, and
//! where in memory it caches each of them. Nothing here executes the file or
//! reads a process; `xray` adds the addresses of a running one.

mod decode;
mod error;
mod functions;
pub(in crate::nccl) mod source;
mod strings;
mod version;

pub use error::ImageError;
pub use functions::{NamedFunction, functions, open_regular};
pub use version::{BadVersion, NcclVersion};

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// One setting that NCCL reads once and caches as an integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// The environment variable, such as `NCCL_BUFFSIZE`.
    pub variable: String,
    /// The C++ function, such as `ncclParamBuffSize`; `None` in a stripped library.
    pub function: Option<String>,
    /// The compiled-in default; `None` when it is not a constant. NCCL uses
    /// negative values (-1, -2) for "decide at run time".
    pub default: Option<i64>,
    /// Link-time address of the 8-byte cache; `i64::MIN` in it means "never read".
    pub cache_vaddr: u64,
    /// Link-time address of the byte that is 1 while `NCCL_NO_CACHE` turns
    /// this cache off (since NCCL 2.29.7).
    pub no_cache_vaddr: Option<u64>,
}

/// One setting behind a typed object (`ncclParam<T>`, since NCCL 2.30.3), most
/// of them of logging: 2 in 2.30.3, 9 in 2.30.7, 10 in 2.32.3. The layout is
/// private to NCCL, so only its existence is known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedParam {
    /// The environment variable, such as `NCCL_DEBUG`.
    pub variable: String,
    /// The C++ object, such as `ncclParamDebugLevel`.
    pub object: String,
    /// Link-time address of the object.
    pub vaddr: u64,
}

/// One PT_LOAD segment, as far as finding the load base needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts in the file, in bytes.
    pub file_offset: u64,
    /// How many bytes of it are in the file.
    pub file_size: u64,
    /// Its link-time address.
    pub vaddr: u64,
    /// How many bytes it takes in memory.
    pub memory_size: u64,
    /// Whether it holds code.
    pub executable: bool,
}

impl Segment {
    /// Whether the file holds the `size` bytes at `vaddr` in this segment.
    fn holds(&self, vaddr: u64, size: u64) -> bool {
        let inside = vaddr.checked_sub(self.vaddr).and_then(|at| at.checked_add(size));
        inside.is_some_and(|end| end <= self.file_size)
    }
}

/// How a library knows a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// A cached integer.
    Param,
    /// A string of the library that is no cached integer: a setting that is
    /// read as text each time, or an internal constant with such a name.
    String,
    /// No such name.
    Unknown,
}

/// What one libnccl file says about itself.
#[derive(Clone)]
pub struct Image {
    /// From the banner in the file.
    pub version: NcclVersion,
    /// The CUDA version that it was built with, such as `12.9`.
    pub cuda: Option<String>,
    /// The GNU build id in lower-case hex.
    pub build_id: Option<String>,
    /// Whether the file still has `.symtab`. Without it parameters are found by
    /// the shape of their code, and `typed` is empty.
    pub symbols: bool,
    /// All cached integers, by variable. When there is none,
    /// [`no_params_reason`](Self::no_params_reason) says why.
    pub params: Vec<Arc<Param>>,
    /// All settings behind typed objects, by variable.
    pub typed: Vec<TypedParam>,
    /// Functions with a cache whose code was not understood.
    pub undecoded: Vec<String>,
    /// All names of the form `NCCL_...` in the file.
    pub names: BTreeSet<String>,
    /// The PT_LOAD segments.
    pub segments: Vec<Segment>,
    /// Runs of addresses that hold all caches and flags of `params`, ascending:
    /// a few reads get all of them.
    pub(crate) cache_runs: Vec<Range<u64>>,
}

impl fmt::Debug for Image {
    /// Without the hundreds of parameters and names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("version", &self.version)
            .field("build_id", &self.build_id)
            .field("params", &self.params.len())
            .finish_non_exhaustive()
    }
}

impl Image {
    /// Reads the file at `path`. Takes some 10 ms; reads a few megabytes of
    /// the 300 that such a library has.
    ///
    /// # Errors
    /// [`ImageError`], which names the path, the reason and the next step.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        Self::from_file(&source::open(path)?, path)
    }

    /// Reads an open file; `path` is only for messages.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn from_file(file: &File, path: &Path) -> Result<Self, ImageError> {
        source::require_regular(file, path)?;
        let data = source::cache(file);
        let elf = source::Elf::parse(&data, path)?;
        let rodata = elf.section(".rodata")?.unwrap_or_else(|| elf.head());
        let not_nccl = || ImageError::NotNccl { path: path.into() };
        let (version, cuda) = strings::banner(rodata).ok_or_else(not_nccl)?;
        let mut names = strings::names(rodata);
        let found = Caches::find(&elf)?;
        let (params, undecoded) = match found.symbols {
            true => found.decode(&elf),
            false => (params_by_shape(&elf)?, Vec::new()),
        };
        let typed = found.typed(&elf);
        let cache_runs = cache_runs(&params);
        names.extend(params.iter().map(|param| param.variable.clone()));
        names.extend(typed.iter().map(|param| param.variable.clone()));
        Ok(Self {
            version,
            cuda,
            build_id: elf.build_id(),
            symbols: found.symbols,
            params,
            typed,
            undecoded,
            names,
            segments: elf.segments.clone(),
            cache_runs,
        })
    }

    /// The cached integer behind an environment variable.
    pub fn param(&self, variable: &str) -> Option<&Arc<Param>> {
        self.position(variable).map(|at| &self.params[at])
    }

    /// Where in `params` a variable is.
    pub(crate) fn position(&self, variable: &str) -> Option<usize> {
        self.params.binary_search_by(|param| param.variable.as_str().cmp(variable)).ok()
    }

    /// How this library knows `name`.
    pub fn kind_of(&self, name: &str) -> Known {
        if self.param(name).is_some() {
            Known::Param
        } else if self.names.contains(name) {
            Known::String
        } else {
            Known::Unknown
        }
    }

    /// The known name that `name` was probably meant to be; `None` when it is
    /// known as it is, or when nothing is close.
    pub fn suggest(&self, name: &str) -> Option<String> {
        if self.names.contains(name) {
            return None;
        }
        let upper = name.to_ascii_uppercase();
        let close = |known: &&String| strsim::damerau_levenshtein(known, &upper);
        let best = self.names.iter().min_by_key(close)?;
        let limit = 1 + name.len().min(64) / 8;
        (name.len() <= 128 && close(&best) <= limit).then(|| best.clone())
    }

    /// Why `params` is empty, as a lower-case sentence for a person.
    pub fn no_params_reason(&self) -> Option<String> {
        self.params.is_empty().then(|| {
            let without = if self.symbols { "" } else { " and no symbol table (it was stripped)" };
            format!(
                "this libnccl {} has no code for settings that is known here{without}, \
                 so the places of its cached settings are not known",
                self.version
            )
        })
    }
}

/// A gap of so many bytes between two caches is read as well: cheaper than one
/// more piece.
const GAP: u64 = 512;

fn cache_runs(params: &[Arc<Param>]) -> Vec<Range<u64>> {
    let caches = params.iter().map(|p| p.cache_vaddr..p.cache_vaddr.saturating_add(8));
    let flags = params.iter().filter_map(|p| p.no_cache_vaddr).map(|at| at..at.saturating_add(1));
    let mut cells: Vec<Range<u64>> = caches.chain(flags).collect();
    cells.sort_unstable_by_key(|cell| cell.start);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for cell in cells {
        match runs.last_mut() {
            Some(run) if cell.start <= run.end.saturating_add(GAP) => {
                run.end = run.end.max(cell.end);
            }
            _ => runs.push(cell),
        }
    }
    runs
}

/// The symbols that belong to cached parameters.
#[derive(Default)]
struct Caches {
    symbols: bool,
    caches: HashMap<u64, String>,
    no_caches: HashSet<u64>,
    functions: Vec<(String, u64, u64)>,
    /// Objects named `ncclParam...`, which are not mangled.
    objects: HashMap<String, u64>,
}

impl Caches {
    fn find(elf: &source::Elf<'_>) -> Result<Self, ImageError> {
        let mut found = Self::default();
        found.symbols = elf.symbols(|symbol| {
            if symbol.function
                && found.functions.len() < MOST
                && let Some(name) = mangled(symbol.name, b"_Z", b"v")
            {
                found.functions.push((name, symbol.vaddr, symbol.size));
            } else if symbol.size == 8
                && found.caches.len() < MOST
                && let Some(name) = mangled(symbol.name, b"_ZZ", b"vE5cache")
            {
                found.caches.insert(symbol.vaddr, name);
            } else if mangled(symbol.name, b"_ZZ", b"vE7noCache").is_some() {
                found.no_caches.insert(symbol.vaddr);
            } else if !symbol.function
                && found.objects.len() < MOST
                && symbol.name.starts_with(b"ncclParam")
            {
                let name = String::from_utf8_lossy(symbol.name).into_owned();
                found.objects.insert(name, symbol.vaddr);
            }
        })?;
        Ok(found)
    }

    /// All parameters by variable, and the functions that were not understood.
    fn decode(&self, elf: &source::Elf<'_>) -> (Vec<Arc<Param>>, Vec<String>) {
        let mut left: HashMap<u64, &String> = self.caches.iter().map(|(a, n)| (*a, n)).collect();
        let mut params = Vec::with_capacity(self.caches.len());
        for (function, vaddr, size) in &self.functions {
            if let Some(param) = self.decode_one(elf, function, *vaddr, *size)
                && left.remove(&param.cache_vaddr).is_some()
            {
                params.push(Arc::new(param));
            }
        }
        params.sort_by(|a, b| a.variable.cmp(&b.variable));
        let mut undecoded: Vec<String> = left.into_values().cloned().collect();
        undecoded.sort();
        (params, undecoded)
    }

    /// The typed objects: `ncclParamX` holds one, `ncclParamXKey` its name.
    fn typed(&self, elf: &source::Elf<'_>) -> Vec<TypedParam> {
        let one = |(key, at): (&String, &u64)| {
            let object = key.strip_suffix("Key")?;
            let variable = strings::setting_name(text_at(elf, *at)?)?;
            let vaddr = *self.objects.get(object)?;
            Some(TypedParam { variable, object: object.to_owned(), vaddr })
        };
        let mut typed: Vec<_> = self.objects.iter().filter_map(one).collect();
        typed.sort_by(|a, b| a.variable.cmp(&b.variable));
        typed
    }

    fn decode_one(
        &self,
        elf: &source::Elf<'_>,
        function: &str,
        vaddr: u64,
        size: u64,
    ) -> Option<Param> {
        // The real ones take 58 to 80 bytes.
        let call = decode::load_param_call(elf.at(vaddr, size.min(512))?, vaddr)?;
        let mut param = param_of(elf, &call)?;
        param.function = Some(function.to_owned());
        param.no_cache_vaddr = call.no_cache.filter(|at| self.no_caches.contains(at));
        self.caches.contains_key(&param.cache_vaddr).then_some(param)
    }
}

/// The parameters of a stripped library, by variable. On all official wheels
/// this finds the same as the symbols do.
fn params_by_shape(elf: &source::Elf<'_>) -> Result<Vec<Arc<Param>>, ImageError> {
    let Some((vaddr, text)) = elf.section_with_address(".text")? else { return Ok(Vec::new()) };
    let calls = decode::scan(text, vaddr).take(MOST);
    let mut params: Vec<_> = calls.filter_map(|call| param_of(elf, &call)).collect();
    params.sort_by(|a, b| a.variable.cmp(&b.variable));
    params.dedup_by(|a, b| a.variable == b.variable);
    Ok(params.into_iter().map(Arc::new).collect())
}

/// More parameters than any NCCL has (2.32.3: 228): a bogus file that claims
/// millions must not cost memory.
const MOST: usize = 4096;

fn param_of(elf: &source::Elf<'_>, call: &decode::Call) -> Option<Param> {
    Some(Param {
        variable: strings::setting_name(text_at(elf, call.name?)?)?,
        function: None,
        default: call.default,
        cache_vaddr: call.cache?,
        no_cache_vaddr: call.no_cache,
    })
}

/// The string at an address; near the end of a segment only a short one.
fn text_at<'a>(elf: &source::Elf<'a>, vaddr: u64) -> Option<&'a [u8]> {
    let bytes = elf.at(vaddr, 128).or_else(|| elf.at(vaddr, 16))?;
    source::c_string(bytes, 0)
}

/// `ncclParamName` out of `PREFIX <length> ncclParamName SUFFIX`, the Itanium
/// mangling of a function without arguments or of a static variable in it.
fn mangled(symbol: &[u8], prefix: &[u8], suffix: &[u8]) -> Option<String> {
    let rest = symbol.strip_prefix(prefix)?.strip_suffix(suffix)?;
    let name = &rest[rest.iter().position(|byte| !byte.is_ascii_digit())?..];
    let length = std::str::from_utf8(&rest[..rest.len() - name.len()]).ok()?;
    let whole = length.parse() == Ok(name.len()) && name.starts_with(b"ncclParam");
    whole.then(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests;
