# A probe that needs only Python 3. It says what exec delivered (E) and what
# libc's environ holds (L).
import binascii, ctypes, os
TOKEN, NAMES = "@TOKEN@", "@NAMES@".split(",")


def pick(kind, entries):
    keep = [e for e in entries if e.partition(b"=")[0].decode("utf-8", "replace") in NAMES]
    return [("has-" + kind).encode() + b"=1"] + [kind.encode() + b"=" + e for e in keep]


def live():
    table = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found = []
    while table and table[len(found)] is not None:
        found.append(table[len(found)])
    return found


report = [b"role=probe", b"no-latched=the probe for Python does not call NCCL"]
try:
    with open("/proc/self/environ", "rb") as file:
        report += pick("exec", file.read().split(b"\0"))
except OSError as error:
    report.append(b"no-exec=" + str(error).encode())
try:
    report += pick("live", live())
except (ValueError, OSError) as error:
    report.append(b"no-live=" + str(error).encode())
text = binascii.hexlify(b"".join(field + b"\0" for field in report)).decode()
sender = "py%dx%s" % (os.getpid(), binascii.hexlify(os.urandom(4)).decode())
parts = [text[i:i + 384] for i in range(0, len(text), 384)]
for index, part in enumerate(parts):
    print("@nccldiag:%s:%s:%d:%d:%s@" % (TOKEN, sender, index, index == len(parts) - 1, part), flush=True)
