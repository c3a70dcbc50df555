use super::*;

const NOW: Duration = Duration::from_secs(100);

#[test]
fn a_token_is_valid_until_its_lifetime_ends() {
    let mut store = TokenStore::default();
    let token = store.issue(NOW, 60).expect("getrandom works");
    assert!(store.is_valid(NOW, token.as_bytes()));
    assert!(store.is_valid(NOW + Duration::from_millis(59_999), token.as_bytes()));
    assert!(!store.is_valid(NOW + Duration::from_secs(60), token.as_bytes()));
}

#[test]
fn other_texts_are_no_tokens() {
    let mut store = TokenStore::default();
    let token = store.issue(NOW, 60).expect("getrandom works");
    let mut wrong = token.clone().into_bytes();
    wrong[63] = if wrong[63] == b'0' { b'1' } else { b'0' };
    for text in [&wrong[..], b"", b"abc", &token.as_bytes()[..63], &[b'g'; 64]] {
        assert!(!store.is_valid(NOW, text));
    }
    assert_ne!(token, store.issue(NOW, 60).expect("getrandom works"));
}

#[test]
fn past_the_limit_the_soonest_to_expire_goes() {
    let mut store = TokenStore::default();
    let long = store.issue(NOW, 1000).expect("getrandom works");
    let short = store.issue(NOW, 5).expect("getrandom works");
    for _ in 0..MAX_TOKENS - 1 {
        store.issue(NOW, 500).expect("getrandom works");
    }
    assert_eq!(store.entries.len(), MAX_TOKENS);
    assert!(store.is_valid(NOW, long.as_bytes()));
    assert!(!store.is_valid(NOW, short.as_bytes()));
}

#[test]
fn expired_tokens_are_forgotten() {
    let mut store = TokenStore::default();
    for _ in 0..10 {
        store.issue(NOW, 1).expect("getrandom works");
    }
    store.issue(NOW + Duration::from_secs(2), 1).expect("getrandom works");
    assert_eq!(store.entries.len(), 1);
}
