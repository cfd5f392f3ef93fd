use serde_json::json;

use super::*;

fn deep(n: usize) -> Vec<(&'static str, String)> {
    vec![
            ("in", format!("1{}", " in [1]".repeat(n))), ("in2", format!("1{}", " in 1".repeat(n))), ("not", format!("{}true", "! ".repeat(n))),
            ("paren", format!("{}true{}", "(".repeat(n), ")".repeat(n))),
            ("list", format!("{}1{}", "[".repeat(n), "]".repeat(n))),
            ("map", format!("{}1{}", "{1:".repeat(n), "}".repeat(n))),
            ("sel", format!("object{}", ".a".repeat(n))),
            ("plus", format!("1{}", "+1".repeat(n))),
            ("tern2", format!("{}true", "true?true:".repeat(n))),
            ("and", format!("true{}", "&&true".repeat(n))),
            ("call", format!("{}1{}", "int(".repeat(n), ")".repeat(n))),
            ("rel", format!("1{}", "==1".repeat(n))),
            ("comp", format!("{}true{}", "[1].all(x,".repeat(n), ")".repeat(n))),
    ]
}

#[test]
fn probe_depth() {
    let exe = std::env::var("PROBE").ok();
    if let Some(p) = exe {
        let (name, n, kb) = { let mut i = p.split(','); (i.next().unwrap().to_string(), i.next().unwrap().parse::<usize>().unwrap(), i.next().unwrap().parse::<usize>().unwrap()) };
        let s = deep(n).into_iter().find(|(m, _)| *m == name).unwrap().1;
        if let Ok(e) = Expression::compile(&s) {
            std::thread::Builder::new().stack_size(kb * 1024).spawn(move || { let _ = e.is_true(&json!({}), &json!({})); }).unwrap().join().unwrap();
        } else { println!("REFUSED"); }
    }
}
