//! Reads one `ncclParam*()` function as machine code and says which variable
//! it reads, with which default, and where it caches the answer. It executes
//! nothing and knows no ELF.
//!
//! `NCCL_PARAM(Name, "ENV", default)` in NCCL's src/include/param.h has
//! compiled, in every wheel from 2.18.3 to 2.32.3, to
//! `ncclLoadParam("NCCL_ENV", default, INT64_MIN, &cache[, &noCache])` behind
//! a test of the cache; the arguments travel in rdi, rsi, rdx, rcx and r8.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// The arguments of the call to `ncclLoadParam`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Call {
    /// Address of the variable's name.
    pub(super) name: Option<u64>,
    /// The default, when it is a constant.
    pub(super) default: Option<i64>,
    /// Address of the cached value.
    pub(super) cache: Option<u64>,
    /// Address of the byte that turns caching off (since 2.29.7).
    pub(super) no_cache: Option<u64>,
}

/// Reads `code`, which lies at `vaddr`, up to its first call or tail call.
pub(super) fn load_param_call(code: &[u8], vaddr: u64) -> Option<Call> {
    let mut decoder = Decoder::with_ip(64, code, vaddr, DecoderOptions::NONE);
    let end = vaddr.checked_add(code.len() as u64)?;
    let mut call = Call::default();
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return None;
        }
        if leaves(&instruction, vaddr, end) && call.name.is_some() && call.cache.is_some() {
            return Some(call);
        }
        note(&instruction, &mut call);
    }
    None
}

/// Finds the calls in a whole `.text` without knowing where functions start:
/// by `mov rdx, [cache]; movabs rax, INT64_MIN`, with which all of them begin.
/// A function that the compiler put into another one is found as well, so the
/// same call may come more than once.
pub(super) fn scan(text: &[u8], vaddr: u64) -> impl Iterator<Item = Call> {
    const MOV_RDX: [u8; 3] = [0x48, 0x8b, 0x15];
    const MOV_BYTES: usize = 7;
    const INT64_MIN_TO_RAX: [u8; 10] = [0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0x80];
    // Own arrays, because the searched pattern must outlive this call.
    let found = memchr::memmem::Finder::new(&INT64_MIN_TO_RAX).into_owned();
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + found.find(text.get(from..)?)?;
        from = at + INT64_MIN_TO_RAX.len();
        Some(at)
    })
    .filter_map(move |at| {
        let start = at.checked_sub(MOV_BYTES).filter(|at| text[*at..].starts_with(&MOV_RDX))?;
        let address = vaddr.checked_add(start as u64)?;
        let window = &text[start..text.len().min(start + WINDOW)];
        let call = load_param_call(window, address)?;
        let offset = i32::from_le_bytes(text[start + 3..at].try_into().ok()?);
        let tested = address.wrapping_add(MOV_BYTES as u64).wrapping_add_signed(offset.into());
        (call.cache == Some(tested)).then_some(call)
    })
}

/// The longest such function takes 80 bytes (2.18.3 to 2.32.3).
const WINDOW: usize = 96;

/// A call, or a jump out of the function (a tail call).
fn leaves(instruction: &Instruction, start: u64, end: u64) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Call => true,
        Mnemonic::Jmp => !(start..end).contains(&instruction.near_branch_target()),
        _ => false,
    }
}

/// Keeps what `instruction` puts into an argument register.
fn note(instruction: &Instruction, call: &mut Call) {
    if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
        return;
    }
    let address = instruction
        .is_ip_rel_memory_operand()
        .then(|| instruction.ip_rel_memory_address())
        .filter(|_| instruction.mnemonic() == Mnemonic::Lea);
    match instruction.op0_register().full_register() {
        Register::RDI => call.name = address,
        Register::RSI => call.default = constant(instruction),
        Register::RCX => call.cache = address,
        Register::R8 => call.no_cache = address,
        _ => {}
    }
}

/// The constant that `instruction` leaves in its first operand, widened as
/// the processor does it.
fn constant(instruction: &Instruction) -> Option<i64> {
    match instruction.code() {
        Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 => Some(i64::from(instruction.immediate32())),
        Code::Mov_r64_imm64 => Some(instruction.immediate64().cast_signed()),
        Code::Mov_rm64_imm32 => Some(instruction.immediate32to64()),
        Code::Xor_r32_rm32 | Code::Xor_rm32_r32 | Code::Xor_r64_rm64 | Code::Xor_rm64_r64 => {
            let same = instruction.op1_kind() == OpKind::Register
                && instruction.op0_register() == instruction.op1_register();
            same.then_some(0)
        }
        // `or rsi, -1`: the short form of -1 when optimising for size.
        Code::Or_rm64_imm8 if instruction.immediate8to64() == -1 => Some(-1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ncclParamBuffSize()` as NCCL 2.27.7 has it, at its own address.
    const BUFF_SIZE: &[u8] = &[
        0x48, 0x8b, 0x15, 0xfd, 0xc2, 0x9e, 0x18, // mov rdx, [cache]
        0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0x80, // movabs rax, INT64_MIN
        0x48, 0x39, 0xc2, 0x74, 0x08, // cmp, je
        0x48, 0x8b, 0x05, 0xe7, 0xc2, 0x9e, 0x18, 0xc3, // mov rax, [cache]; ret
        0x48, 0x83, 0xec, 0x08, // sub rsp, 8
        0x48, 0x8d, 0x0d, 0xdb, 0xc2, 0x9e, 0x18, // lea rcx, [cache]
        0x48, 0xc7, 0xc6, 0xfe, 0xff, 0xff, 0xff, // mov rsi, -2
        0x48, 0x8d, 0x3d, 0x8b, 0x0b, 0x14, 0x00, // lea rdi, [name]
        0xe8, 0xb8, 0xac, 0x04, 0x00, // call ncclLoadParam
    ];

    #[test]
    fn a_real_function_is_read() {
        let call = load_param_call(BUFF_SIZE, 0x7010c);
        let expected = Call {
            name: Some(0x1b_0cce),
            default: Some(-2),
            cache: Some(0x18a5_c410),
            no_cache: None,
        };
        assert_eq!(call, Some(expected));
    }

    #[test]
    fn a_function_is_found_between_others() {
        let text = [&[0x90; 5][..], BUFF_SIZE, &[0xcc; 9], BUFF_SIZE, &[0x48, 0xb8]].concat();
        let calls: Vec<Call> = scan(&text, 0x7010c - 5).collect();
        assert_eq!(calls.len(), 2);
        assert_eq!(Some(calls[0]), load_param_call(BUFF_SIZE, 0x7010c));
    }

    #[test]
    fn a_function_that_is_cut_off_gives_nothing() {
        for end in 0..BUFF_SIZE.len() - 1 {
            assert_eq!(load_param_call(&BUFF_SIZE[..end], 0x7010c), None, "{end} bytes");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(code: Vec<u8>, vaddr: u64) {
            let _ = load_param_call(&code, vaddr);
            let _ = scan(&code, vaddr).count();
        }
    }
}
