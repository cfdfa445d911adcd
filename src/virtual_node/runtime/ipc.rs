//! Memory handles between processes. A handle names the owner's process and
//! descriptor, through which the other side opens the same file.

use super::abi::{IpcHandle, Out};
use super::errors::{Code, Error, INVALID_HANDLE, INVALID_VALUE, code};
use super::memory::{self, Kind, Range};
use super::sys::{self, Backing};
use std::ffi::{c_int, c_uint};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

functions! {
    "cudaIpcGetMemHandle" => get,
    "cudaIpcOpenMemHandle" => open,
    "cudaIpcCloseMemHandle" => close,
}

extern "C" fn get(to: Out<IpcHandle>, at: usize) -> Code {
    code(handle_of(at).and_then(|handle| to.set(handle)))
}

fn handle_of(at: usize) -> Result<IpcHandle, Error> {
    let all = memory::ranges();
    let (_, range) = memory::holding(&all, at).ok_or(INVALID_VALUE)?;
    let Kind::Device(file) = &range.kind else { return Err(INVALID_VALUE) };
    let text =
        format!("{} {} {} {} ", std::process::id(), file.as_raw_fd(), range.bytes, range.device);
    let mut bytes = [0; 64];
    bytes.get_mut(..text.len()).ok_or(INVALID_VALUE)?.copy_from_slice(text.as_bytes());
    Ok(IpcHandle(bytes))
}

extern "C" fn open(to: Out<usize>, handle: IpcHandle, _flags: c_uint) -> Code {
    code(mapped(&handle).and_then(|at| to.set(at)))
}

fn mapped(handle: &IpcHandle) -> Result<usize, Error> {
    let text = std::str::from_utf8(&handle.0).map_err(|_| INVALID_HANDLE)?;
    let mut words = text.split(' ');
    let mut number = || words.next()?.parse::<usize>().ok();
    let (Some(pid), Some(fd), Some(bytes), Some(device)) = (number(), number(), number(), number())
    else {
        return Err(INVALID_HANDLE);
    };
    let path = format!("/proc/{pid}/fd/{fd}");
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|_| INVALID_HANDLE)?;
    let pages = sys::map(bytes, Backing::Shared(&file, 0))?;
    let at = pages.at;
    let device = c_int::try_from(device).map_err(|_| INVALID_HANDLE)?;
    let kind = Kind::Device(Arc::new(file));
    memory::ranges().insert(at, Range { bytes, device, kind, _pages: Some(pages) });
    Ok(at)
}

extern "C" fn close(at: usize) -> Code {
    memory::free(at)
}
