// Who passes the challenge-response handshake, and which proofs are refused.
#include "base/challenge_response.h"

#include <gtest/gtest.h>

namespace tccl {
namespace {

constexpr std::string_view kSecret = "the job's secret";
constexpr std::string_view kContext = "control a b";

TEST(ChallengeResponse, BothSidesWithTheSecretPass) {
  const Challenge challenge = make_challenge();
  const Response response = respond(kSecret, challenge, kContext);
  EXPECT_TRUE(verify(kSecret, challenge, response, kContext));
  const Confirmation confirmation = confirm(kSecret, challenge, response, kContext);
  EXPECT_TRUE(verify(kSecret, challenge, response, confirmation, kContext));
}

TEST(ChallengeResponse, AnotherSecretIsRefused) {
  const Challenge challenge = make_challenge();
  const Response response = respond("a guess", challenge, kContext);
  EXPECT_FALSE(verify(kSecret, challenge, response, kContext));
  const Response good = respond(kSecret, challenge, kContext);
  EXPECT_FALSE(
      verify(kSecret, challenge, good, confirm("a guess", challenge, good, kContext), kContext));
}

TEST(ChallengeResponse, AnotherContextIsRefused) {
  const Challenge challenge = make_challenge();
  const Response response = respond(kSecret, challenge, kContext);
  EXPECT_FALSE(verify(kSecret, challenge, response, "control a c"));
  const Confirmation confirmation = confirm(kSecret, challenge, response, kContext);
  EXPECT_FALSE(verify(kSecret, challenge, response, confirmation, "control a c"));
}

TEST(ChallengeResponse, AReplayedResponseIsRefused) {
  const Response recorded = respond(kSecret, make_challenge(), kContext);
  EXPECT_FALSE(verify(kSecret, make_challenge(), recorded, kContext));
}

TEST(ChallengeResponse, AReplayedConfirmationIsRefused) {
  const Challenge challenge = make_challenge();
  const Response first = respond(kSecret, challenge, kContext);
  const Confirmation recorded = confirm(kSecret, challenge, first, kContext);
  const Response second = respond(kSecret, challenge, kContext);
  EXPECT_FALSE(verify(kSecret, challenge, second, recorded, kContext));
}

/// A process without the secret could otherwise send a proof back to its author.
TEST(ChallengeResponse, AReflectedProofIsRefused) {
  const Challenge challenge = make_challenge();
  const Response response = respond(kSecret, challenge, kContext);
  EXPECT_FALSE(verify(kSecret, challenge, response, Confirmation{response.proof}, kContext));
  const Confirmation confirmation = confirm(kSecret, challenge, response, kContext);
  EXPECT_FALSE(verify(kSecret, challenge, Response{response.nonce, confirmation.proof}, kContext));
}

}  // namespace
}  // namespace tccl
