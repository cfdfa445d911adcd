use super::*;

#[test]
fn every_form_is_understood() {
    assert_eq!("auto".parse(), Ok(Choice::Auto));
    assert_eq!("./auto".parse(), Ok(Choice::Path("./auto".into())));
    assert_eq!("/a:b/libnccl.so.2".parse(), Ok(Choice::Path("/a:b/libnccl.so.2".into())));
    assert_eq!("pid:42".parse(), Ok(Choice::Pid(42)));
    let wheel = |text: &str| Choice::Pip(text.parse().expect("a wheel"));
    assert_eq!("pip:2.27.7".parse(), Ok(wheel("2.27.7+cu12")));
    assert_eq!("pip:2.28.9+cu13".parse(), Ok(wheel("2.28.9+cu13")));
}

#[test]
fn mistakes_get_a_usage_error() {
    assert_eq!("".parse::<Choice>(), Err(BadChoice::Empty));
    for text in ["pid:0", "pid:-1", "pid:+1", "pid:x", "pid:99999999999"] {
        assert!(matches!(text.parse::<Choice>(), Err(BadChoice::Pid(_))), "{text}");
    }
    for text in ["pip:", "pip:../../x", "pip:2.27", "pip:2.27.7+cu11", "pip:2.27.7 --x"] {
        assert!(matches!(text.parse::<Choice>(), Err(BadChoice::Wheel(_))), "{text}");
    }
    assert!(matches!("pypi:2.27.7".parse::<Choice>(), Err(BadChoice::Scheme(_))));
}

#[test]
fn a_process_without_nccl_is_told_from_one_that_does_not_exist() {
    let own = std::process::id().cast_signed();
    let text = resolve(&Choice::Pid(own), None, &mut crate::nccl::progress::silent)
        .unwrap_err()
        .to_string();
    assert!(text.contains("no libnccl loaded"), "{text}");
    let text = resolve(&Choice::Pid(i32::MAX), None, &mut crate::nccl::progress::silent)
        .unwrap_err()
        .to_string();
    assert!(text.contains("no such process"), "{text}");
}

#[test]
fn the_newest_of_the_cache_for_the_same_cuda_is_at_hand() {
    let all = crate::nccl::testing::libraries();
    for entry in &all {
        let image = Image::open(&entry.path).expect("a libnccl");
        let same = all.iter().map(|other| &other.wheel).filter(|w| w.cuda() == entry.wheel.cuda());
        let newest = same.max().filter(|newest| newest.release() > image.version);
        let found = newer_fetched(&image);
        let spelling = found.as_ref().map(|newer| newer.spelling.clone());
        assert_eq!(spelling, newest.map(|wheel| format!("pip:{}", wheel.spelling())));
        if let Some(newer) = found {
            assert!(newer.found.image.version > image.version, "{}", entry.wheel);
        }
    }
}
