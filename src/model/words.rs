//! Words: enums whose members are words in tables, in JSON and on the command
//! line, and nouns with a number.

/// Makes such an enum, with its words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            ::serde::Serialize, ::serde::Deserialize,
        )]
        pub enum $name {
            $($(#[$item_doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// Every member, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word used in tables, JSON and on the command line.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                Self::ALL.iter().find(|m| m.word() == text).copied().ok_or(())
            }
        }
    };
}

pub(crate) use words;

/// A number with its noun: `1 path`, `2 paths`.
pub fn counted(count: usize, noun: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{s}")
}
