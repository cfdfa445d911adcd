//! Machines that have a name. Their descriptions are files in `matrix/topologies`,
//! each with the sources of its facts; nothing is decided here.

/// A machine with a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// What a user calls it.
    pub name: &'static str,
    /// What it stands for, in a few words.
    pub about: &'static str,
    /// NCCL's topology XML, with comments.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal: $about:literal,)*) => {
        [$(Preset {
            name: $name,
            about: $about,
            text: include_str!(concat!("../../../matrix/topologies/", $name, ".xml")),
        }),*]
    };
}

static PRESETS: [Preset; 11] = presets! {
    "a100x8": "HGX A100, 8 GPUs with NVSwitches, two AMD Rome sockets",
    "a100x2-bridge": "two A100 PCIe cards with an NVLink bridge, one AMD Milan socket",
    "h100x8": "HGX H100, 8 GPUs with NVSwitches, two Intel Sapphire Rapids sockets",
    "h200x8": "HGX H200, 8 GPUs with NVSwitches, two Intel Sapphire Rapids sockets",
    "b200x8": "HGX B200, 8 GPUs with NVSwitches, two Intel Emerald Rapids sockets",
    "rtxpro6000x8": "8 RTX PRO 6000, each at its own root port, two AMD Turin sockets",
    "rtxpro6000x8-pairs": "8 RTX PRO 6000, two below each PCIe switch, two AMD Turin sockets",
    "rtxpro6000x8-switch": "8 RTX PRO 6000, four below each PCIe switch, two AMD Turin sockets",
    "rtxpro6000x4": "4 RTX PRO 6000, each at its own root port, one AMD Turin socket",
    "rtx4090x8": "8 RTX 4090, each at its own root port, two AMD Milan sockets",
    "rtx4090x4": "4 RTX 4090, each at its own root port, one AMD Milan socket",
};

/// All presets, in the order in which they are shown.
pub fn all() -> &'static [Preset] {
    &PRESETS
}

/// The preset of this name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// The names, for messages.
pub fn names() -> String {
    PRESETS.map(|preset| preset.name).join(", ")
}
