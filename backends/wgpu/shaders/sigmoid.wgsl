fn sigmoid(x: f32) -> f32 {
    // Of the two forms the one whose exponential does not overflow.
    if (x >= 0.0) {
        return 1.0 / (1.0 + exp(-x));
    }
    let e = exp(x);
    return e / (1.0 + e);
}
