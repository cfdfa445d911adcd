use super::{csv, markdown, samples, table};
use crate::model::Explain;
use crate::render::text::Look;

const PLAIN: Look = Look { terminal: false, colour: false, width: 80 };

fn shown(result: &Explain, look: Look) -> String {
    let mut out = Vec::new();
    table::write(result, look, &mut out).expect("a Vec takes all");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn print_all() {
    for result in samples::all() {
        for width in [80, 120] {
            println!("{}\n=====", shown(&result, Look { width, ..PLAIN }));
        }
    }
    let mut out = Vec::new();
    markdown::write(&samples::rich(), &mut out).unwrap();
    csv::write(&samples::compared(), &mut out).unwrap();
    println!("{}", String::from_utf8(out).unwrap());
}
