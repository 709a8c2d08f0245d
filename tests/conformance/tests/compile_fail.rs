//! Misuse that the types exclude does not compile: scenarios S032, S043 and X014, and what belongs to them.

#[test]
fn s032_s043_x014_misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
