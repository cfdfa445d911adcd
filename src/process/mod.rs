//! Reads other processes from outside: exec block, live environ, maps, memory.
//! Nothing here stops, attaches to or writes into a process.
