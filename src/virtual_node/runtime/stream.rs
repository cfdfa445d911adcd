//! Streams and events. Work is done, or put into a graph, at the moment it is
//! enqueued, so every stream is always idle and every event has happened.

use super::abi::{HostFunction, Out};
use super::errors::{Code, Error, INVALID_HANDLE, code};
use super::graph::{self, Work};
use super::timeline::{Capture, Stream, lock};
use std::cell::Cell;
use std::ffi::{c_int, c_uint};

functions! {
    "cudaStreamCreate" => create,
    "cudaStreamCreateWithFlags" => create_with_flags,
    "cudaStreamCreateWithPriority" => create_with_priority,
    "cudaStreamDestroy" => destroy,
    "cudaStreamSynchronize" => synchronize,
    "cudaStreamQuery" => synchronize,
    "cudaStreamGetId" => id,
    "cudaStreamWaitEvent" => wait_event,
    "cudaEventCreate" => event_create,
    "cudaEventCreateWithFlags" => event_create_with_flags,
    "cudaEventDestroy" => event_destroy,
    "cudaEventRecord" => event_record,
    "cudaEventQuery" => event_query,
    "cudaEventSynchronize" => event_query,
    "cudaThreadExchangeStreamCaptureMode" => exchange_mode,
    "cudaLaunchHostFunc" => launch_host_function,
}

/// `cudaStreamCreate`.
pub extern "C" fn create(to: Out<usize>) -> Code {
    let mut timeline = lock();
    let tables = timeline.tables();
    let handle = tables.handle();
    tables.streams.insert(handle, Stream::default());
    code(to.set(handle))
}

extern "C" fn create_with_flags(to: Out<usize>, _flags: c_uint) -> Code {
    create(to)
}

extern "C" fn create_with_priority(to: Out<usize>, _flags: c_uint, _priority: c_int) -> Code {
    create(to)
}

/// `cudaStreamDestroy`.
pub extern "C" fn destroy(stream: usize) -> Code {
    let gone = lock().tables().streams.remove(&stream);
    code(gone.map(drop).ok_or(INVALID_HANDLE))
}

extern "C" fn synchronize(stream: usize) -> Code {
    code(lock().tables().capture(stream).map(drop))
}

extern "C" fn id(stream: usize, to: Out<u64>) -> Code {
    let known = lock().tables().capture(stream).map(drop);
    code(known.and_then(|()| to.set(stream as u64)))
}

extern "C" fn wait_event(stream: usize, event: usize, _flags: c_uint) -> Code {
    code(wait(stream, event))
}

/// Makes a stream wait for an event; an event of a capture takes the stream
/// into that capture.
fn wait(stream: usize, event: usize) -> Result<(), Error> {
    let mut timeline = lock();
    let tables = timeline.tables();
    let marked = tables.events.get(&event).ok_or(INVALID_HANDLE)?.clone();
    let Some(marked) = marked else { return tables.capture(stream).map(drop) };
    match &mut tables.stream(stream)?.capture {
        Some(own) => {
            let new = marked.heads.into_iter().filter(|head| !own.heads.contains(head));
            let new: Vec<usize> = new.collect();
            own.heads.extend(new);
        }
        none => *none = Some(Capture { origin: false, ..marked }),
    }
    Ok(())
}

extern "C" fn event_create(to: Out<usize>) -> Code {
    let mut timeline = lock();
    let tables = timeline.tables();
    let handle = tables.handle();
    tables.events.insert(handle, None);
    code(to.set(handle))
}

extern "C" fn event_create_with_flags(to: Out<usize>, _flags: c_uint) -> Code {
    event_create(to)
}

extern "C" fn event_destroy(event: usize) -> Code {
    let gone = lock().tables().events.remove(&event);
    code(gone.map(drop).ok_or(INVALID_HANDLE))
}

extern "C" fn event_record(event: usize, stream: usize) -> Code {
    let mut timeline = lock();
    let tables = timeline.tables();
    let marks = tables.capture(stream).map(|capture| capture.cloned());
    code(marks.and_then(|marks| {
        *tables.events.get_mut(&event).ok_or(INVALID_HANDLE)? = marks;
        Ok(())
    }))
}

extern "C" fn event_query(event: usize) -> Code {
    code(lock().tables().events.get(&event).map(drop).ok_or(INVALID_HANDLE))
}

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

extern "C" fn exchange_mode(mode: *mut c_int) -> Code {
    if mode.is_null() {
        return code(Err(super::errors::INVALID_VALUE));
    }
    // SAFETY: CUDA's contract: the caller's mode, to be replaced by the old one.
    unsafe { *mode = MODE.replace(*mode) };
    0
}

extern "C" fn launch_host_function(stream: usize, call: HostFunction, data: usize) -> Code {
    code(graph::append(stream, Work::Host(call, data)).map(|captured| {
        if !captured {
            call(data);
        }
    }))
}
