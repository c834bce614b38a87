// A CUDA device that does nothing, for torch's FakeTensorMode: with it backward runs on tensors of device "cuda", in a
// thread of its own as on a GPU, without a GPU and with any build of torch.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device device(c10::DeviceType::CUDA, 0);
const c10::Stream stream(c10::Stream::DEFAULT, device);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream; }
  c10::Stream getDefaultStream(c10::Device) const override { return stream; }
  c10::Stream exchangeStream(c10::Stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

}  // namespace

namespace at {  // where the registry's types are

struct PretendedHooks : CUDAHooksInterface {
  explicit PretendedHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};

// Before those of a torch that is built for CUDA, which are taken from the registry when torch is imported.
static RegistererCUDAHooksRegistry hooks(
    "CUDAHooks", c10::RegistryPriority::REGISTRY_PREFERRED, CUDAHooksRegistry(),
    RegistererCUDAHooksRegistry::DefaultCreator<PretendedHooks>);

}  // namespace at

// Called once torch is imported, so that this guard replaces the one of a torch that is built for CUDA.
extern "C" void pretend_cuda() {
  static c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::CUDA, new Guard());
}
